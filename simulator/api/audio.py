"""`/v1/audio/transcriptions` and `/v1/audio/translations`: a multipart form in, text out."""

from __future__ import annotations

import re
from array import array

from simulator.api.generation import Generation, Length
from simulator.api.served_model import Prompt, Served
from simulator.http.errors import bad_request
from simulator.http.exchange import Exchange
from simulator.model.tokens import TYPECODE, tokenize

_BOUNDARY = re.compile(rb'boundary="?([^";]+)')
_NAME = re.compile(rb'[; ]name="([^"]*)"')

#: Bytes of a second of 16 kHz, 16-bit mono sound.
_BYTES_A_SECOND = 32_000
#: Whisper's encoder turns 30 s of sound into 1500 positions.
_TOKENS_A_SECOND = 50
_LONGEST_S = 30


async def transcribe(served: Served, exchange: Exchange) -> None:
    """Answer with the text that the simulated model recognizes."""
    fields = form(exchange.headers.get(b"content-type", b""), await exchange.body())
    sound = fields.get("file")
    if sound is None:
        raise bad_request("A file is required.", "file")
    _, adapter = served.resolve(fields.get("model", b"").decode("utf-8", "replace"))
    seconds = min(_LONGEST_S, 1 + len(sound) // _BYTES_A_SECOND)
    generation = Generation(
        served, exchange, [Prompt(_tokens(sound, seconds * _TOKENS_A_SECOND), adapter)], Length()
    )
    await generation.run()
    text = generation.choices[0].answer.text()
    if fields.get("response_format") == b"text":
        await exchange.reply(text.encode(), b"text/plain; charset=utf-8")
        return
    await exchange.json({"text": text, "usage": {"type": "duration", "seconds": seconds}})


def form(content_type: bytes, body: bytes) -> dict[str, bytes]:
    """The parts of a `multipart/form-data` body, by name."""
    boundary = _BOUNDARY.search(content_type)
    if boundary is None:
        raise bad_request("A multipart/form-data body is required.")
    fields: dict[str, bytes] = {}
    for part in body.split(b"--" + boundary[1])[1:]:
        head, found, content = part.partition(b"\r\n\r\n")
        name = _NAME.search(head)
        if found and name is not None:
            fields[name[1].decode("utf-8", "replace")] = content.removesuffix(b"\r\n")
    return fields


def _tokens(sound: bytes, count: int) -> array[int]:
    """`count` token ids derived from the bytes of a sound, after a fixed start."""
    start = tokenize("sound")
    if not sound:
        return start
    whole = sound[: 4 * count]
    ring = array(TYPECODE, whole + bytes(-len(whole) % 4))
    return start + array(TYPECODE, (ring[at % len(ring)] for at in range(count)))
