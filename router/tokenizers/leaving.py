"""Whether a worker leaves tools out of prompts with `tool_choice: none` (see `choice`).

`/tokenize` has no `tool_choice`, so it cannot tell. Instead a chat is sent, limited to one token,
and the answer's count of prompt tokens tells.
"""

from collections.abc import Mapping

import msgspec

from router.fleet.worker import Worker
from router.rendering.choice import NONE
from router.upstream.client import Inquiries, NoAnswer

_PATH = "/v1/chat/completions"
#: Seconds that a worker may take for one token.
PATIENCE_S = 10.0


class _Usage(msgspec.Struct):
    prompt_tokens: int


class _Answer(msgspec.Struct):
    usage: _Usage


_decode = msgspec.json.Decoder(_Answer).decode


async def leaves_out(
    inquiries: Inquiries,
    worker: Worker,
    model: str,
    chat: Mapping[str, object],
    counts: tuple[int, int],
) -> bool | None:
    """Ask a worker once; None if its answer does not tell.

    `chat` has tools. Its prompt has the first of `counts` tokens with them, the second without.
    """
    whole, less = counts
    asked = {**chat, "model": model, "tool_choice": NONE, "max_tokens": 1}
    try:
        body = msgspec.json.encode(asked)
        answer = await inquiries.ask(worker, _PATH, patience=PATIENCE_S, body=body)
        counted = _decode(answer.body).usage.prompt_tokens if answer.good else -1
    except (NoAnswer, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return {whole: False, less: True}.get(counted)
