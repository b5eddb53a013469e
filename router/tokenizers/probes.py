"""Prompts that both the router and a worker tokenize, to compare the results. Pure.

The texts are our own. Each probe is the body of a request as a client would send it, which
`/tokenize` takes too.
"""

import struct
import zlib
from base64 import b64encode
from contextlib import suppress
from typing import NamedTuple

import msgspec

from router.api.endpoints import ENDPOINTS, Endpoint
from router.rendering.errors import NotReproducible
from router.rendering.samples import SAMPLES
from router.rendering.tokens import PromptTokenizer

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


def answers(exact: PromptTokenizer) -> dict[str, bytes]:
    """Return our ids for every probe that we can tokenize, by the probe's name."""
    ids: dict[str, bytes] = {}
    for probe in PROBES:
        with suppress(NotReproducible):  # such requests are keyed by their text
            ids[probe.name] = exact.ids(probe.endpoint, msgspec.json.encode(probe.body))
    return ids


def head_answer(exact: PromptTokenizer) -> bytes:
    """Return our ids before the image of the image probe; empty if they are not known."""
    with suppress(NotReproducible):
        return exact.head(IMAGE.endpoint, msgspec.json.encode(IMAGE.body)).ids
    return b""
