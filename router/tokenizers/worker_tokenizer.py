"""What a worker is asked about tokens, as in vLLM: `/tokenize`, and two properties of its chats.

The answer of `/tokenize` is exact by definition and needs nothing installed here. But it costs
every prompt a round trip to a busy engine plus its time to tokenize, so it is used to check
agreement, and for every prompt only when no other way is known.

Engines are tested, not matched against versions. One that takes a chat's token ids with the request
refuses an empty list of them, naming the field, before anything is computed. Whether tools are left
out of prompts with `tool_choice: none` is told by the count of prompt tokens of a chat limited to
one token, as `/tokenize` has no `tool_choice`.
"""

import asyncio
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from router.api.endpoints import Endpoint, Prompted
from router.fleet.inquiries import Inquiries, NoAnswer
from router.fleet.worker import Worker
from router.rendering.chat import Body, chat_of
from router.rendering.messages import NotReproducible, with_reasoning_renamed
from router.rendering.probes import PROBES
from router.rendering.tokens import (
    NO_TOOLS_CHOICE,
    pack_ids,
    text_or_ids,
    tokenizable_fields,
    without_unused_tools,
)

PATH = "/tokenize"
_CHAT_PATH = "/v1/chat/completions"
_IDS_FIELD = "prompt_token_ids"
#: Seconds that a worker may take for one answer, for the answers to all probes, and for one token.
TIMEOUT_S, ANSWERS_TIMEOUT_S, TOOLS_TIMEOUT_S = 5.0, 20.0, 10.0
#: Seconds that a request waits for its tokens; after that it is keyed by its text.
PROMPT_TIMEOUT_S = 1.0
#: Longest request, in bytes, whose tokens are asked for: it and the answer are read on the event
#: loop.
MAX_ASKED_BYTES = 1 << 20
#: Seconds without asking any worker after one has not answered.
RETRY_INTERVAL_S = 5.0
#: Status codes if there is no such path, or access to it is denied.
_NOT_SERVED = frozenset((401, 403, 404, 405, 501))
#: Status codes of a prompt that the worker would refuse as a real request too.
_REFUSED = frozenset((400, 422))
#: Fields that `/tokenize` reads in the same way as a chat request does.
_CHAT_PROMPT = (
    "messages",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
)


class NoTokenizer(Exception):
    """The worker has no `/tokenize` for us; the message says how it answered."""


class PromptRefused(Exception):
    """The worker has `/tokenize`, but refuses this prompt."""


class _Usage(msgspec.Struct):
    prompt_tokens: int


class _Error(msgspec.Struct):
    param: str | None = None


class _Answer(msgspec.Struct):
    """What is read of an answer, of `/tokenize` or of a chat; all None if it is something else."""

    tokens: list[int] | None = None
    usage: _Usage | None = None
    error: _Error | None = None


_decode = msgspec.json.Decoder(_Answer).decode


async def _ask(
    inquiries: Inquiries, worker: Worker, path: str, question: Mapping[str, object], patience: float
) -> tuple[int, _Answer]:
    """Return the status and the content of a worker's answer. Raises NoAnswer."""
    body = msgspec.json.encode(question)
    answer = await inquiries.ask(worker, path, patience=patience, body=body)
    try:
        return answer.status, _decode(answer.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return answer.status, _Answer()


async def tokenize(
    inquiries: Inquiries,
    worker: Worker,
    model: str,
    body: Mapping[str, object],
    patience: float = TIMEOUT_S,
) -> bytes:
    """Return the worker's ids for a request's body, 32 bits each, little-endian.

    Raises NoTokenizer, PromptRefused, NoAnswer.
    """
    status, answer = await _ask(inquiries, worker, PATH, {**body, "model": model}, patience)
    if status in _NOT_SERVED:
        raise NoTokenizer(f"{PATH} answered {status}")
    if status in _REFUSED:
        raise PromptRefused(f"{PATH} answered {status}")
    if not 200 <= status < 300:
        raise NoAnswer(f"{PATH} answered {status}")
    try:
        return array("I", answer.tokens).tobytes()  # type: ignore[arg-type]
    except (TypeError, OverflowError):
        raise NoTokenizer(f"{PATH} answered something else than tokens") from None


async def worker_answers(
    inquiries: Inquiries, worker: Worker, model: str, names: Sequence[str] = ()
) -> dict[str, bytes]:
    """Return the worker's ids for the named probes, or all; without those that it refuses.

    Probes are sent one at a time, to keep the load on the worker low. Raises NoTokenizer, or
    NoAnswer, also if all take too long.
    """
    ids: dict[str, bytes] = {}
    try:
        async with asyncio.timeout(ANSWERS_TIMEOUT_S):
            for probe in PROBES:
                if not names or probe.name in names:
                    with suppress(PromptRefused):
                        ids[probe.name] = await tokenize(inquiries, worker, model, probe.body)
    except TimeoutError:
        raise NoAnswer(f"{PATH} takes too long") from None
    return ids


async def takes_ids(inquiries: Inquiries, worker: Worker, model: str) -> bool:
    """Return whether a worker takes token ids with a chat; False also if it does not answer."""
    chat: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": "Hello!"}],
        "max_tokens": 1,
        "kv_transfer_params": {_IDS_FIELD: []},
    }
    try:
        status, answer = await _ask(inquiries, worker, _CHAT_PATH, chat, TIMEOUT_S)
    except NoAnswer:
        return False
    error = answer.error
    return status == 400 and error is not None and _IDS_FIELD in (error.param or "")


async def leaves_out(
    inquiries: Inquiries,
    worker: Worker,
    model: str,
    chat: Mapping[str, object],
    counts: tuple[int, int],
) -> bool | None:
    """Return whether a worker leaves out tools with `tool_choice: none`; None if it does not tell.

    `chat` has tools. Its prompt has the first of `counts` tokens with them, the second without.
    """
    request = {**chat, "model": model, "tool_choice": NO_TOOLS_CHOICE, "max_tokens": 1}
    try:
        status, answer = await _ask(inquiries, worker, _CHAT_PATH, request, TOOLS_TIMEOUT_S)
    except NoAnswer:
        return None
    if not 200 <= status < 300 or answer.usage is None:
        return None
    whole, less = counts
    return {whole: False, less: True}.get(answer.usage.prompt_tokens)


class WorkerTokenizer:
    """Asks the least busy of a model's workers."""

    def __init__(
        self,
        inquiries: Inquiries,
        model: str,
        workers: Callable[[], Sequence[Worker]],
        left_out: Callable[[], bool | None],
    ) -> None:
        """`workers` returns those that answer now; `left_out` tells whether they leave out tools
        with `tool_choice: none`."""
        self._inquiries = inquiries
        self._model = model
        self._workers = workers
        self._left_out = left_out
        self._again = 0.0

    async def ids(self, endpoint: Endpoint, body: bytes) -> bytes:
        """Return the prompt's ids, 32 bits each, little-endian. Raises NotReproducible."""
        if len(body) > MAX_ASKED_BYTES:
            raise NotReproducible("too long")
        fields = tokenizable_fields(endpoint, body)
        question = _question(endpoint, without_unused_tools(fields, left_out=self._left_out()))
        if isinstance(question, bytes):
            return question
        now = asyncio.get_running_loop().time()
        workers = self._workers() if now >= self._again else ()
        if not workers:
            raise NotReproducible("no worker tokenizes")
        worker = min(workers, key=lambda candidate: candidate.load.in_flight)
        try:
            return await tokenize(self._inquiries, worker, self._model, question, PROMPT_TIMEOUT_S)
        except PromptRefused:
            raise NotReproducible("refused by a worker") from None
        except (NoTokenizer, NoAnswer):
            self._again = asyncio.get_running_loop().time() + RETRY_INTERVAL_S
            raise NotReproducible("no worker tokenizes") from None


def _question(endpoint: Endpoint, fields: Body) -> dict[str, Any] | bytes:
    """Return the question for `/tokenize`, or the ids if the request contains them.

    Raises NotReproducible.
    """
    match endpoint.prompted:
        case Prompted.CHAT:
            return _chat_question(fields)
        case Prompted.COMPLETION | Prompted.INPUT:
            prompt = text_or_ids(fields, endpoint)
        case _:
            raise NotReproducible("a dialect that workers do not tokenize")
    if isinstance(prompt, bytes):
        return prompt
    return {"prompt": prompt.text, "add_special_tokens": prompt.special}


def _chat_question(fields: Body) -> dict[str, Any] | bytes:
    chat = chat_of(fields)  # raises NotReproducible for anything but text
    if chat.ids is not None:
        return pack_ids(chat.ids)
    if chat.documents is not None:
        raise NotReproducible("documents")
    keywords = dict(chat.keywords)
    if chat.effort is not None:  # `/tokenize` has no field for it
        keywords["reasoning_effort"] = chat.effort
        keywords.setdefault("enable_thinking", chat.effort != "none")
    question = {name: fields[name] for name in _CHAT_PROMPT if name in fields}
    # `/tokenize`, unlike chats, does not rename these fields itself (vLLM's protocol of both).
    question["messages"] = [with_reasoning_renamed(message) for message in fields["messages"]]
    return {**question, "chat_template_kwargs": keywords} if keywords else question
