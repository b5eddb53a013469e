"""Whether a worker accepts a chat's token ids with the request.

Engines are tested, not matched against versions: one that knows the field refuses an empty list,
naming the field, before anything is computed. One that does not know it ignores it and answers with
one token.
"""

from typing import Any

import msgspec

from router.fleet.worker import Worker
from router.upstream.client import Inquiries, NoAnswer

_PATH = "/v1/chat/completions"
_FIELD = "prompt_token_ids"
#: Seconds that a worker may take to refuse.
PATIENCE_S = 5.0


class _Error(msgspec.Struct):
    param: str | None = None


class _Refusal(msgspec.Struct):
    error: _Error


_decode = msgspec.json.Decoder(_Refusal).decode


async def takes_ids(inquiries: Inquiries, worker: Worker, model: str) -> bool:
    """Ask a worker once; False also if it does not answer."""
    chat: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": "Hello!"}],
        "max_tokens": 1,
        "kv_transfer_params": {_FIELD: []},
    }
    try:
        body = msgspec.json.encode(chat)
        answer = await inquiries.ask(worker, _PATH, patience=PATIENCE_S, body=body)
        return answer.status == 400 and _FIELD in (_decode(answer.body).error.param or "")
    except (NoAnswer, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
