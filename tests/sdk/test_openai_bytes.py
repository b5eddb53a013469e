"""Nothing between client and worker changes a byte of a body."""

import gzip
import json
from typing import Any

from tests.sdk.conftest import MODEL, MakeScripted
from tests.sdk.documents import (
    DONE,
    answer,
    delta,
    event,
    message,
    response_events,
    stream,
)

CHAT = "chat.completions.create"
ODD = "ß \u2028 \x00 \ud83d\ude00 日本 \\u0041 \"'</script> \t \u200b e\u0301".encode(
    "utf-16", "surrogatepass"
).decode("utf-16")
MESSAGES = {"messages": [{"role": "user", "content": ODD}]}
ASKED: dict[str, Any] = {"model": MODEL, **MESSAGES}
#: JSON unlike what any encoder here would write: spacing, escapes, numbers, a duplicate key.
STRANGE = (
    b'\r\n {"id":"a\\u0062c\\/", "object" :"chat.completion","x":1e2,"y":-0.0,'
    b'"y":12345678901234567890,"created":1.0,"model":"toy","choices":[ ],"usage":null}\n\n  '
)

CALLS: dict[str, dict[str, Any]] = {
    CHAT: {
        **MESSAGES,
        "tools": [],
        "temperature": 0.1 + 0.2,
        "seed": 2**62,
        "extra_body": {"top_k": -1},
    },
    "completions.create": {"prompt": ODD, "logit_bias": {"50256": -100}},
    "embeddings.create": {"input": [ODD, "", "a" * 70_000]},
    "responses.create": {"input": [{"role": "user", "content": ODD}], "metadata": {"k": ODD}},
}


def test_both_bodies(scripted: MakeScripted) -> None:
    """The worker receives what the client sent, and the client what the worker sent."""
    scene = scripted(answer(STRANGE))
    sent: list[bytes] = []
    scene.caller.hook("request", lambda request: sent.append(request.content))
    for name, arguments in CALLS.items():
        whole = scene.caller.whole(name, model=MODEL, **arguments)
        assert (name, scene.asked) == (name, sent[-1])
        assert json.loads(scene.asked)["model"] == MODEL
        assert (name, whole.body) == (name, STRANGE)
        assert whole.headers["content-length"] == str(len(STRANGE))
        assert "transfer-encoding" not in whole.headers


STREAMS: dict[str, list[bytes]] = {
    "crlf": [b"data: 1\r\n\r\n", b"data: 2\r\n\r\ndata: [DONE]\r\n\r\n"],
    "comments": [b": ping\n\n", b"data: {}\n: in between\n\n", b":\n\n", DONE],
    "many lines": [b'event: x\nid: 7\nretry: 10\ndata: {"a":\ndata: 1}\n\n', DONE],
    "byte by byte": [bytes([byte]) for byte in event(delta("☕")) + DONE],
    "no end": [event(delta("a")), b"data: half"],
    "more after the end": [DONE, b"data: {}\n\n", b"\n\n\n"],
    "large": [event(delta("word " * 50_000)), DONE],
    "named": response_events("ein ", "Wort ☕"),
}


def test_streams(scripted: MakeScripted) -> None:
    """Event streams of any form pass unchanged."""
    scene = scripted()
    for name, pieces in STREAMS.items():
        scene.plays(stream(*pieces))
        whole = scene.caller.whole(CHAT, stream=True, **ASKED)
        assert (name, whole.body) == (name, b"".join(pieces))
        assert whole.headers["content-type"] == "text/event-stream; charset=utf-8"


def test_a_compressed_answer(scripted: MakeScripted) -> None:
    """Workers are asked not to compress; what one compresses all the same reaches the client."""
    packed = gzip.compress(json.dumps(message("zipped")).encode())
    scene = scripted(answer(packed, 200, b"content-encoding: gzip", b"vary: accept-encoding"))
    reply = scene.caller.call("chat.completions.with_raw_response.create", **ASKED)
    assert reply.parse().choices[0].message.content == "zipped"
    assert int(reply.headers["content-length"]) == len(packed)
    (accepted,) = fields(scene.worker.requests[-1], b"accept-encoding")
    assert accepted == b"identity"


def fields(request: bytes, name: bytes) -> list[bytes]:
    """Return the values of a header field."""
    lines = request.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]
    pairs = [line.split(b": ", 1) for line in lines]
    return [value for key, value in pairs if key.lower() == name]
