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
from typing import Any

import msgspec

from router.api.endpoints import Endpoint, Prompted
from router.fleet.inquiries import Inquiries, NoAnswer
from router.fleet.worker import Worker
from router.rendering.chat import Body, chat_of
from router.rendering.errors import NotReproducible
from router.rendering.messages import with_reasoning_renamed
from router.rendering.tokens import (
    NO_TOOLS_CHOICE,
    pack_ids,
    text_or_ids,
    tokenizable_fields,
    without_unused_tools,
)
from router.tokenizers.probes import PROBES

PATH = "/tokenize"
#: Seconds that a worker may take for one answer.
TIMEOUT_S = 5.0
#: Status codes if there is no such path, or access to it is denied.
_NOT_SERVED = frozenset((401, 403, 404, 405, 501))
#: Status codes of a prompt that the worker would refuse as a real request too.
_REFUSED = frozenset((400, 422))


class NoTokenizer(Exception):
    """The worker has no `/tokenize` for us; the message says how it answered."""


class PromptRefused(Exception):
    """The worker has `/tokenize`, but refuses this prompt."""


class _Tokens(msgspec.Struct):
    tokens: list[int]


_decode = msgspec.json.Decoder(_Tokens).decode


async def tokenize(
    inquiries: Inquiries,
    worker: Worker,
    model: str,
    body: Mapping[str, object],
    patience: float = TIMEOUT_S,
) -> bytes:
    """Return the worker's ids for a request's body, 32 bits each, little-endian.

    Raises NoTokenizer, Refused, NoAnswer.
    """
    question = msgspec.json.encode({**body, "model": model})
    answer = await inquiries.ask(worker, PATH, patience=patience, body=question)
    if answer.status in _NOT_SERVED:
        raise NoTokenizer(f"{PATH} answered {answer.status}")
    if answer.status in _REFUSED:
        raise PromptRefused(f"{PATH} answered {answer.status}")
    if not answer.good:
        raise NoAnswer(f"{PATH} answered {answer.status}")
    try:
        return array("I", _decode(answer.body).tokens).tobytes()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError):
        raise NoTokenizer(f"{PATH} answered something else than tokens") from None


async def worker_answers(
    inquiries: Inquiries, worker: Worker, model: str, names: Sequence[str] = ()
) -> dict[str, bytes]:
    """Return the worker's ids for the named probes, or all; without those that it refuses.

    Probes are sent one at a time, to keep the load on the worker low. Raises NoTokenizer, NoAnswer.
    """
    ids: dict[str, bytes] = {}
    for probe in PROBES:
        if not names or probe.name in names:
            try:
                ids[probe.name] = await tokenize(inquiries, worker, model, probe.body)
            except PromptRefused:
                continue
    return ids


_PATH = "/v1/chat/completions"
_FIELD = "prompt_token_ids"


class _Error(msgspec.Struct):
    param: str | None = None


class _Refusal(msgspec.Struct):
    error: _Error


_decode_refusal = msgspec.json.Decoder(_Refusal).decode


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
        answer = await inquiries.ask(worker, _PATH, patience=TIMEOUT_S, body=body)
        return answer.status == 400 and _FIELD in (_decode_refusal(answer.body).error.param or "")
    except (NoAnswer, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


#: Seconds that a worker may take for one token.
TOOLS_TIMEOUT_S = 10.0


class _Usage(msgspec.Struct):
    prompt_tokens: int


class _Answer(msgspec.Struct):
    usage: _Usage


_decode_usage = msgspec.json.Decoder(_Answer).decode


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
    request = {**chat, "model": model, "tool_choice": NO_TOOLS_CHOICE, "max_tokens": 1}
    try:
        body = msgspec.json.encode(request)
        answer = await inquiries.ask(worker, _PATH, patience=TOOLS_TIMEOUT_S, body=body)
        counted = _decode_usage(answer.body).usage.prompt_tokens if answer.good else -1
    except (NoAnswer, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return {whole: False, less: True}.get(counted)


#: Seconds that a request waits for its tokens; after that it is keyed by its text.
PROMPT_TIMEOUT_S = 1.0
#: Longest request, in bytes, whose tokens are asked for: it and the answer are read on the event
#: loop.
MAX_ASKED_BYTES = 1 << 20
#: Seconds without asking any worker after one has not answered.
PAUSE_S = 5.0
#: Fields that `/tokenize` reads in the same way as a chat request does.
_CHAT_PROMPT = (
    *("messages", "tools", "add_generation_prompt", "continue_final_message"),
    "add_special_tokens",
)


class WorkerTokenizer:
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
        """Return the prompt's ids, 32 bits each, little-endian. Raises NotReproducible."""
        if len(body) > MAX_ASKED_BYTES:
            raise NotReproducible("too long")
        question = _question(
            endpoint,
            without_unused_tools(tokenizable_fields(endpoint, body), left_out=self._left_out()),
        )
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
            self._again = asyncio.get_running_loop().time() + PAUSE_S
            raise NotReproducible("no worker tokenizes") from None


def _question(endpoint: Endpoint, fields: Body) -> dict[str, Any] | bytes:
    """Return the question for `/tokenize`, or the ids if the request contains them. Raises
    NotReproducible."""
    match endpoint.prompted:
        case Prompted.CHAT:
            return _chat_prompt(fields)
        case Prompted.COMPLETION | Prompted.INPUT:
            prompt = text_or_ids(fields, endpoint)
        case _:
            raise NotReproducible("a dialect that workers do not tokenize")
    if isinstance(prompt, bytes):
        return prompt
    return {"prompt": prompt.text, "add_special_tokens": prompt.special}


def _chat_prompt(fields: Body) -> dict[str, Any] | bytes:
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
