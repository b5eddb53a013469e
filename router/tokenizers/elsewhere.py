"""A model's tokens, asked of a worker for every prompt, when no other way is known."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from router.api.request import Endpoint, Prompted
from router.fleet.worker import Worker
from router.rendering.body import Body, packed, plain, readable
from router.rendering.chat import chat_of
from router.rendering.choice import chosen
from router.rendering.errors import Unlike
from router.rendering.messages import renamed
from router.tokenizers.remote import NoTokenizer, Refused, tokenize
from router.upstream.client import Inquiries, NoAnswer

#: Seconds that a request waits for its tokens; after that it is keyed by its text.
PATIENCE_S = 1.0
#: Longest request, in bytes, whose tokens are asked for: it and the answer are read on the event
#: loop.
LONGEST = 1 << 20
#: Seconds without asking any worker after one has not answered.
PAUSE_S = 5.0
#: Fields that `/tokenize` reads in the same way as a chat request does.
_CHAT = (
    *("messages", "tools", "add_generation_prompt", "continue_final_message"),
    "add_special_tokens",
)


class Elsewhere:
    """Asks the least busy of a model's workers."""

    def __init__(
        self,
        inquiries: Inquiries,
        model: str,
        workers: Callable[[], Sequence[Worker]],
        left_out: Callable[[], bool | None] = lambda: False,
    ) -> None:
        """`workers` returns those ready now; `left_out` tells whether they leave out tools with
        `tool_choice: none`."""
        self._inquiries = inquiries
        self._model = model
        self._workers = workers
        self._left_out = left_out
        self._again = 0.0

    async def ids(self, endpoint: Endpoint, body: bytes) -> bytes:
        """Return the prompt's ids, 32 bits each, little-endian. Raises Unlike."""
        if len(body) > LONGEST:
            raise Unlike("too long")
        asked = _question(endpoint, chosen(readable(endpoint, body), left_out=self._left_out()))
        if isinstance(asked, bytes):
            return asked
        now = asyncio.get_running_loop().time()
        workers = self._workers() if now >= self._again else ()
        if not workers:
            raise Unlike("no worker tokenizes")
        worker = min(workers, key=lambda one: one.load.in_flight)
        try:
            return await tokenize(self._inquiries, worker, self._model, asked, PATIENCE_S)
        except Refused:
            raise Unlike("refused by a worker") from None
        except (NoTokenizer, NoAnswer):
            self._again = asyncio.get_running_loop().time() + PAUSE_S
            raise Unlike("no worker tokenizes") from None


def _question(endpoint: Endpoint, asked: Body) -> dict[str, Any] | bytes:
    """Return the question for `/tokenize`, or the ids if the request contains them. Raises
    Unlike."""
    match endpoint.prompted:
        case Prompted.CHAT:
            return _chat(asked)
        case Prompted.COMPLETION | Prompted.INPUT:
            found = plain(asked, endpoint)
        case _:
            raise Unlike("a dialect that workers do not tokenize")
    if isinstance(found, bytes):
        return found
    return {"prompt": found.text, "add_special_tokens": found.special}


def _chat(asked: Body) -> dict[str, Any] | bytes:
    chat = chat_of(asked)  # raises Unlike for anything but text
    if chat.ids is not None:
        return packed(chat.ids)
    if chat.documents is not None:
        raise Unlike("documents")
    keywords = dict(chat.keywords)
    if chat.effort is not None:  # `/tokenize` has no field for it
        keywords["reasoning_effort"] = chat.effort
        keywords.setdefault("enable_thinking", chat.effort != "none")
    question = {name: asked[name] for name in _CHAT if name in asked}
    # `/tokenize`, unlike chats, does not rename these fields itself (vLLM's protocol of both).
    question["messages"] = [renamed(message) for message in asked["messages"]]
    return {**question, "chat_template_kwargs": keywords} if keywords else question
