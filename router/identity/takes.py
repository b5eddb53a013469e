"""Whether a worker takes a chat's token ids along with it.

There is no list of versions here: an engine that knows the field refuses an empty list by its name,
before anything is computed. One that does not passes it over, and answers with one token.
"""

from typing import Any

import msgspec

from router.inquiry import Inquiries, NoAnswer
from router.worker import Worker

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
    """Ask it once; False too if it does not answer."""
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
