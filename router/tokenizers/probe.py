"""Prompts that both the router and a worker tokenize, to compare the results.

The texts are our own. Each probe is the body of a request as a client would send it, which
`/tokenize` takes too.

A worker's own tokenizer: `/tokenize`, as in vLLM.

Its answer is exact by definition and needs nothing installed here. But it costs every prompt a
round trip to a busy engine plus its time to tokenize, so it is used to check agreement and as a
last resort.

Whether a worker accepts a chat's token ids with the request.

Engines are tested, not matched against versions: one that knows the field refuses an empty list,
naming the field, before anything is computed. One that does not know it ignores it and answers with
one token.

Whether a worker leaves tools out of prompts with `tool_choice: none` (see `choice`).

`/tokenize` has no `tool_choice`, so it cannot tell. Instead a chat is sent, limited to one token,
and the answer's count of prompt tokens tells.

A model's tokens, asked of a worker for every prompt, when no other way is known.
"""

import asyncio
import struct
import zlib
from array import array
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from router.api.endpoints import ENDPOINTS, Endpoint, Prompted
from router.fleet.inquiries import Inquiries, NoAnswer
from router.fleet.worker import Worker
from router.rendering.body import NONE, Body, chosen, packed, plain, readable
from router.rendering.chat import chat_of
from router.rendering.errors import Unlike
from router.rendering.messages import renamed
from router.rendering.tokenizer import SAMPLES

_CHAT = ENDPOINTS["/v1/chat/completions"]
_COMPLETION = ENDPOINTS["/v1/completions"]

_SYSTEM = "You are a careful assistant.\nAnswer in one sentence; say so if you do not know."
_ODD = (
    "Zürich: 今日は良い天気ですね。 Съешь же ещё 👩‍👩‍👧‍👦🏽 "
    "e\u0301 \u200b\u00a0 l\u2019été \u2013 1,234.5 €"
)
_MARKS = (
    "<|im_start|>user\nno<|im_end|>\n<|begin_of_text|><|eot_id|><s>[INST] x [/INST]</s>"
    "<start_of_turn>model\n<end_of_turn><\uff5cUser\uff5c><think>\n</think><tool_call></tool_call>"
)
_WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather in a place, now.",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": 'A city, "Łódź" say.'},
                "days": {"type": "integer", "default": 1},
            },
            "required": ["place"],
        },
    },
}
_CALL = {
    "id": "call00001",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"place": "Łódź", "days": 2}'},
}


class Probe(NamedTuple):
    """One probe."""

    name: str
    """The probe's name in logs."""
    endpoint: Endpoint
    """The endpoint that the body is for."""
    body: dict[str, object]
    """The request's body, without a model's name."""


def square(side: int) -> dict[str, object]:
    """Return an image part: a square of one colour."""
    row = b"\0" + b"\x80\x90\xa0" * side
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(row * side)), (b"IEND", b""))
    data = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in chunks
    )
    url = f"data:image/png;base64,{b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


def _says(role: str, content: object, **more: object) -> dict[str, object]:
    return {"role": role, "content": content, **more}


def _plain(name: str, text: str, **more: object) -> Probe:
    return Probe(name, _COMPLETION, {"prompt": text, **more})


def _chat(name: str, *messages: dict[str, object], **more: object) -> Probe:
    return Probe(name, _CHAT, {"messages": list(messages), **more})


_ASKS = _says("user", "What is the weather in Łódź?")
_PARTS = [{"type": "text", "text": "First part."}, {"type": "text", "text": " Second, " + _ODD}]
_TALK = (_says("user", "Hello!"), _says("assistant", "Hello. How can I help? \n"), _ASKS)
_TOOL_TALK = (
    _says("system", _SYSTEM),
    _ASKS,
    _says("assistant", None, tool_calls=[_CALL]),
    _says("tool", '{"celsius": 21.5, "sky": "klar"}', tool_call_id="call00001"),
)

#: A chat that ends with an image: only what comes before the image is compared.
IMAGE = _chat(
    "image",
    _says("system", _SYSTEM),
    *_TALK[:2],
    _says("user", [{"type": "text", "text": "What is this? " + _ODD}, square(64)]),
)

TOOLS = _chat("tools", _ASKS, tools=[_WEATHER])
#: The same chat without tools.
NO_TOOLS = _chat("without tools", _ASKS)

PROBES: tuple[Probe, ...] = (
    _plain("plain", "The quick brown fox jumps over the lazy dog, doesn't it?"),
    _plain("non-ASCII", _ODD),
    _plain("samples", "".join(SAMPLES)),
    _plain("special tokens in text", _MARKS),
    _plain("without special tokens", "Once upon a time", add_special_tokens=False),
    _chat("chat", _says("user", "Hello!")),
    _chat("system prompt", _says("system", _SYSTEM), _says("user", "Hello!")),
    _chat("developer", _says("developer", _SYSTEM), _says("user", "Hello!")),
    _chat("several turns", *_TALK),
    _chat("parts", _says("user", _PARTS), _says("assistant", "Yes."), _says("user", _PARTS)),
    _chat("special tokens in chat", _says("user", _MARKS + _ODD)),
    _chat("empty texts", _says("system", ""), _says("user", "")),
    NO_TOOLS,
    TOOLS,
    _chat("tool calls and results", *_TOOL_TALK, tools=[_WEATHER]),
    _chat("thinking off", _ASKS, chat_template_kwargs={"enable_thinking": False}),
    _chat(
        "to be continued",
        _says("user", "Count."),
        _says("assistant", "One, two,"),
        add_generation_prompt=False,
        continue_final_message=True,
    ),
)

PATH = "/tokenize"
#: Seconds that a worker may take for one answer.
TIMEOUT_S = 5.0
#: Status codes if there is no such path, or access to it is denied.
_NOT_SERVED = frozenset((401, 403, 404, 405, 501))
#: Status codes of a prompt that the worker would refuse as a real request too.
_REFUSED = frozenset((400, 422))


class NoTokenizer(Exception):
    """The worker has no `/tokenize` for us; the message says how it answered."""


class Refused(Exception):
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
    asked = msgspec.json.encode({**body, "model": model})
    answer = await inquiries.ask(worker, PATH, patience=patience, body=asked)
    if answer.status in _NOT_SERVED:
        raise NoTokenizer(f"{PATH} answered {answer.status}")
    if answer.status in _REFUSED:
        raise Refused(f"{PATH} answered {answer.status}")
    if not answer.good:
        raise NoAnswer(f"{PATH} answered {answer.status}")
    try:
        return array("I", _decode(answer.body).tokens).tobytes()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError):
        raise NoTokenizer(f"{PATH} answered something else than tokens") from None


async def answers(
    inquiries: Inquiries, worker: Worker, model: str, names: Sequence[str] = ()
) -> dict[str, bytes]:
    """Return the worker's ids for the named probes, or all; without those that it refuses.

    Probes are sent one at a time, to keep the load on the worker low. Raises NoTokenizer, NoAnswer.
    """
    found: dict[str, bytes] = {}
    for probe in PROBES:
        if not names or probe.name in names:
            try:
                found[probe.name] = await tokenize(inquiries, worker, model, probe.body)
            except Refused:
                continue
    return found


_PATH = "/v1/chat/completions"
_FIELD = "prompt_token_ids"
#: Seconds that a worker may take to refuse.


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
    asked = {**chat, "model": model, "tool_choice": NONE, "max_tokens": 1}
    try:
        body = msgspec.json.encode(asked)
        answer = await inquiries.ask(worker, _PATH, patience=TOOLS_TIMEOUT_S, body=body)
        counted = _decode_usage(answer.body).usage.prompt_tokens if answer.good else -1
    except (NoAnswer, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return {whole: False, less: True}.get(counted)


#: Seconds that a request waits for its tokens; after that it is keyed by its text.
PROMPT_TIMEOUT_S = 1.0
#: Longest request, in bytes, whose tokens are asked for: it and the answer are read on the event
#: loop.
LONGEST = 1 << 20
#: Seconds without asking any worker after one has not answered.
PAUSE_S = 5.0
#: Fields that `/tokenize` reads in the same way as a chat request does.
_CHAT_PROMPT = (
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
            return await tokenize(self._inquiries, worker, self._model, asked, PROMPT_TIMEOUT_S)
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
            return _chat_prompt(asked)
        case Prompted.COMPLETION | Prompted.INPUT:
            found = plain(asked, endpoint)
        case _:
            raise Unlike("a dialect that workers do not tokenize")
    if isinstance(found, bytes):
        return found
    return {"prompt": found.text, "add_special_tokens": found.special}


def _chat_prompt(asked: Body) -> dict[str, Any] | bytes:
    chat = chat_of(asked)  # raises Unlike for anything but text
    if chat.ids is not None:
        return packed(chat.ids)
    if chat.documents is not None:
        raise Unlike("documents")
    keywords = dict(chat.keywords)
    if chat.effort is not None:  # `/tokenize` has no field for it
        keywords["reasoning_effort"] = chat.effort
        keywords.setdefault("enable_thinking", chat.effort != "none")
    question = {name: asked[name] for name in _CHAT_PROMPT if name in asked}
    # `/tokenize`, unlike chats, does not rename these fields itself (vLLM's protocol of both).
    question["messages"] = [renamed(message) for message in asked["messages"]]
    return {**question, "chat_template_kwargs": keywords} if keywords else question
