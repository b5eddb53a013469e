# ruff: noqa: RUF001 - characters that look like others are what this is about
"""Texts and requests for which tokens are compared: those of two libraries, ours and a worker's.

All texts are our own. `SAMPLES` are texts on which tokenizers have been known to differ: scripts,
code, emoji, runs, odd spaces. Each of the `PROBES` is the body of a request as a client would send
it, which `/tokenize` takes too.
"""

import struct
import zlib
from base64 import b64encode
from contextlib import suppress
from typing import NamedTuple

import msgspec

from router.api.endpoints import ENDPOINTS, Endpoint
from router.rendering.messages import NotReproducible
from router.rendering.tokens import PromptTokenizer

_WORDS = "The quick brown fox jumps over the lazy dog, doesn't it? "

SAMPLES: tuple[str, ...] = (
    "",
    " ",
    "a",
    _WORDS,
    _WORDS * 40,
    _WORDS.upper(),
    "  two  spaces   three    four\ttab\t\ttabs \n newline\n\n\ntwo\r\nwindows\rold mac ",
    " leading, trailing \u00a0 no-break \u2003 em \u200b zero \u3000 wide \ufeff mark ",
    "I'm you're he'LL they'Ve we'd it'S don't O'Neill 'quoted' ’twas l’été",
    "0 1 12 123 1234 12345 123456789 3.14159 1,000,000 1e-9 0x7fff 2026-11-21T18:30:00Z ½ ² Ⅷ ४२",
    'def f(x: int) -> str:\n    return f"{x!r:>10}"  # comment\n\n\nclass A(B):\n\tpass\n',
    "for (int i = 0; i < n; ++i) { a[i] += b->c * ~d ^ 0xFFu; } /* ... */ // end\n",
    "SELECT * FROM \"t\" WHERE a<>'b' AND c>=1;--\n<div class='x'>&nbsp;&lt;</div>\n",
    "```json\n{}\n``` ~~~ ***bold*** __it__ [a](b) | c | d |\n|---|---|\n- [x] e\n",
    '{"name":"search","arguments":{"q":"caf\\u00e9 \\n","n":[1,2,3],"ok":true,"none":null}}',
    "$x^2 + \\frac{a}{b} \\leq \\sum_{i=1}^{n} \\alpha_i$ ∀ε>0 ∃δ: |x−y|<δ ⇒ |f(x)−f(y)|<ε",
    "https://user@example.com:8080/a/b.html?q=1&r=%20#frag C:\\dir\\file.txt /usr/lib ~/.ssh",
    "Zürich, naïve façade, señor, Łódź, Đà Nẵng, İstanbul, ß ẞ ﬁ ﬂ Å Å e\u0301 é ñ n\u0303",
    "Съешь же ещё этих мягких французских булок. Ελληνικά γράμματα. Հայերեն. ქართული.",
    "今日は良い天気ですね。東京都に住んでいます。カタカナ ｶﾀｶﾅ 漢字，標點「」。",
    "我喜欢喝茶！한국어 문장입니다.",
    "مرحبا بالعالم، كيف حالك؟ שלום עולם. \u202bחץ\u202c ",
    "हिन्दी में वाक्य। ภาษาไทยไม่มีเว้นวรรค ខ្មែរ မြန်မာ தமிழ்",
    "😀😃👍🏽👩‍👩‍👧‍👦🏳️‍🌈🇩🇪🇯🇵❤️‍🔥 1️⃣ ☃ ☃️ 🧑🏿‍💻 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐍈 \U0001f9ff",
    "a" * 3000,
    "ab" * 1500,
    " " * 1000 + "x",
    "\n" * 500,
    "=" * 300 + "-" * 300 + "." * 300 + "!" * 200 + "?" * 200,
    "0" * 777,
    "é" * 500 + "字" * 500 + "👍" * 300,
    "\x00\x01\x02\x07\x1b[31m\x7f\x80\x9f\u2028\u2029\ufffd\ufffe\uffff",
    "Zalgo: h\u0315\u0300\u0301\u0302e\u0316\u0317l\u0334\u0335lo",
    "<|im_start|>system\nYou are<|im_end|>\n<|endoftext|><|im_start|>user\n",
    "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>",
    "<s>[INST] Hi [/INST] Hello</s> <unk><pad><mask> [CLS] [SEP] <bos><start_of_turn>user\n",
    "<｜begin▁of▁sentence｜><｜User｜>hi<｜Assistant｜><think>\n</think> <tool_call>\n</tool_call>",
    " <|im_end|> <|im_end|><|im_en d|> <|IM_END|> <|im_end|>\u00a0</s> \n</s>\n",
    "▁underline ▁▁ Ġ Ċ ĉ âĢĻ <0x0A> <0xFF> ##piece Ã©",
)

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
    """One probe: its name in logs, and a request's body without a model's name."""

    name: str
    endpoint: Endpoint
    body: dict[str, object]


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
