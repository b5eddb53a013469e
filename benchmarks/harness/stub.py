"""A stub worker that uses next to no CPU: it sends prepared answers in vLLM's format.

It speaks enough HTTP/1.1 for proxies, which send one request at a time on a connection. As in
vLLM, every step of its engine adds one token, and so one event, to each running stream; every
event is a chunk and a write of its own.
"""

import asyncio
import signal
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import cycle
from multiprocessing.connection import Connection
from typing import cast

import uvloop

#: A model name for which no proxy tries to download a tokenizer.
MODEL = "Qwen/Qwen3-8B"

_TYPE = b'{"id":"chatcmpl-6f0d8e5a4c3b49f2a1d7c8e9b0a1f2d3","object":"chat.completion%s",'
_MADE = b'"created":%%d,"model":"%s",' % MODEL.encode()
_HEAD = b"HTTP/1.1 %s\r\ndate: Tue, 06 Aug 2024 12:00:00 GMT\r\nserver: uvicorn\r\n%s\r\n"
_USAGE = (
    b'"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":100,'
    b'"prompt_tokens_details":{"cached_tokens":%d}}'
)
#: Marks a request whose stream is to come in bursts, and how many events a burst has.
BURSTS, BURST_EVENTS = b'"user":"bursts"', 10
#: Added to the nanoseconds of a timestamp, so that all have the same number of digits.
STAMP_ZERO = 10**18
_WORDS = ("The", " answer", " to", " this", " question", " is", " that", " it", " depends", ",")


@dataclass(frozen=True, slots=True)
class StubSettings:
    """How streams are paced, and which endpoints there are."""

    events: int = 100
    """`data:` events of a stream that carry a token."""
    step_s: float = 0.005
    """Seconds between two events of one stream."""
    phases: int = 1
    """Parts of a step over which streams are spread, so that their events do not coincide."""
    tokenizes: bool = True
    """Whether it has `/tokenize`, whose token ids are not those of any model."""


def _plain(body: bytes, kind: bytes = b"application/json", status: bytes = b"200 OK") -> bytes:
    fields = b"content-length: %d\r\ncontent-type: %s\r\n" % (len(body), kind)
    return _HEAD % (status, fields) + body


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _usage(length: int) -> bytes:
    """Return the `usage` for a request of `length` bytes."""
    tokens = max(length // 4, 2)
    return _USAGE % (tokens, tokens + 100, tokens // 2)


@lru_cache(maxsize=256)
def _chat_answer(length: int) -> bytes:
    text = b" ".join([b"The answer to this question is that it depends on what is asked."] * 4)
    return _plain(
        _TYPE % b""
        + _MADE % int(time.time())
        + b'"choices":[{"index":0,"message":{"role":"assistant","content":"%s","refusal":null,'
        b'"annotations":null,"audio":null,"function_call":null,"tool_calls":[],"reasoning":null},'
        b'"logprobs":null,"finish_reason":"stop","stop_reason":null,"token_ids":null}],'
        b'"service_tier":null,"system_fingerprint":null,%s,"prompt_logprobs":null,'
        b'"prompt_token_ids":null,"kv_transfer_params":null}' % (text, _usage(length))
    )


def _event(delta: bytes, finish: bytes = b"null") -> bytes:
    """Return one event as a chunk, with a placeholder for the timestamp."""
    head = b"data: " + _TYPE % b".chunk" + _MADE
    tail = (
        b'"choices":[{"index":0,"delta":{%s},"logprobs":null,"finish_reason":%s,'
        b'"token_ids":null}]}\n\n' % (delta, finish)
    )
    return b"%x\r\n%s%s\r\n" % (len(head % STAMP_ZERO + tail), head, tail)


@lru_cache(maxsize=256)
def _last_events(length: int) -> bytes:
    """Return the events after the last token: usage and [DONE]."""
    head = b"data: " + _TYPE % b".chunk" + _MADE % STAMP_ZERO
    usage = head + b'"choices":[],' + _usage(length) + b"}\n\n"
    return _chunk(usage) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


STREAM_HEAD = _HEAD % (
    b"200 OK",
    b"content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n",
)
FIRST = _event(b'"role":"assistant","content":""')
TOKENS = tuple(_event(b'"content":"%s"' % word.encode()) for word in _WORDS)
FINISH = _event(b"", b'"stop"')

_MODELS = _plain(
    b'{"object":"list","data":[{"id":"%b","object":"model","created":1722945021,'
    b'"owned_by":"vllm","root":"%b","parent":null,"max_model_len":131072,"permission":[]}]}'
    % (MODEL.encode(), MODEL.encode())
)
_METRICS = _plain(
    b"# TYPE vllm:num_requests_running gauge\n"
    b'vllm:num_requests_running{engine="0",model_name="%b"} 1.0\n'
    b"# TYPE vllm:num_requests_waiting gauge\n"
    b'vllm:num_requests_waiting{engine="0",model_name="%b"} 0.0\n'
    b"# TYPE vllm:cache_config_info gauge\n"
    b'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="27000"} 1.0\n'
    % (MODEL.encode(), MODEL.encode()),
    b"text/plain; version=0.0.4; charset=utf-8",
)
#: SGLang's worker information, which its gateways request.
_INFO = _plain(
    b'{"model_path":"/models/%b","served_model_name":"%b","is_generation":true,'
    b'"version":"0.5.0","max_model_len":131072,"tp_size":1,"dp_size":1}' % ((MODEL.encode(),) * 2)
)
#: Endpoints that get the same answer as a chat without a stream.
_PLAIN_PATHS = frozenset((b"/v1/completions", b"/v1/embeddings", b"/v1/rerank"))
_MISSING = _plain(b'{"detail":"Not Found"}', status=b"404 Not Found")
_ANSWERS = {
    b"/v1/models": _MODELS,
    b"/health": _plain(b""),
    b"/metrics": _METRICS,
    b"/version": _plain(b'{"version":"0.11.0"}'),
    **dict.fromkeys((b"/get_server_info", b"/server_info"), _INFO),
    **dict.fromkeys((b"/get_model_info", b"/model_info"), _INFO),
}
#: Longer bodies are not searched for `stream`, because benchmarks stream short prompts only.
_MAX_STREAM_BODY_BYTES = 4096
#: Token of a large vocabulary, as JSON, for each value of two bytes of text.
_VOCABULARY = tuple(b"%d" % (1000 + number) for number in range(1 << 16))


def _tokenized(body: bytes) -> bytes:
    """Answer `/tokenize`: a token per four bytes; equal beginnings get equal tokens."""
    words = array("H", body[: len(body) // 2 * 2])[::2]
    tokens = b",".join([_VOCABULARY[word] for word in words])
    return _plain(b'{"count":%d,"max_model_len":131072,"tokens":[%s]}' % (len(words), tokens))


class StubEngine:
    """Sends the next event on every running stream, once per step."""

    def __init__(self, settings: StubSettings) -> None:
        self._settings = settings
        self._slots: Sequence[set[WorkerConnection]] = [set() for _ in range(settings.phases)]
        self._place = cycle(self._slots)
        self._stepping: asyncio.Task[None] | None = None

    def add(self, stream: "WorkerConnection") -> set["WorkerConnection"]:
        """Run another stream; it ends by removing itself from the returned set."""
        slot = next(self._place)
        slot.add(stream)
        if self._stepping is None or self._stepping.done():
            self._stepping = asyncio.ensure_future(self._step())
        return slot

    async def _step(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        pause = self._settings.step_s / self._settings.phases
        while any(self._slots):
            for slot in self._slots:
                due += pause
                await asyncio.sleep(due - loop.time())
                for stream in tuple(slot):
                    stream.step()

    @property
    def events(self) -> int:
        """Events of a stream that carry a token."""
        return self._settings.events

    @property
    def tokenizes(self) -> bool:
        """Return true if it answers `/tokenize`."""
        return self._settings.tokenizes


class WorkerConnection(asyncio.Protocol):
    """One connection from a proxy."""

    _transport: asyncio.Transport

    def __init__(self, engine: StubEngine) -> None:
        self._engine = engine
        self._head = b""
        self._path = b""
        self._left = -1
        self._body: list[bytes] = []
        self._slot: set[WorkerConnection] = set()
        self._length = 0
        self._sent = 0
        self._burst = 1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, _exc: Exception | None) -> None:
        """End the stream, if there is one."""
        self._slot.discard(self)

    def data_received(self, data: bytes) -> None:
        """Collect a request; answer once all of it has arrived."""
        if self._left < 0:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return
            data = self._head[end + 4 :]
            self._begin(self._head[:end])
        self._left -= len(data)
        self._body.append(data)
        if self._left <= 0:
            body, self._body, self._head, self._left = b"".join(self._body), [], b"", -1
            self._answer(body)

    def _begin(self, head: bytes) -> None:
        self._path = head.split(b" ", 2)[1].partition(b"?")[0]
        at = head.lower().find(b"\r\ncontent-length:")
        self._left = int(head[at + 17 :].split(b"\r\n", 1)[0]) if at >= 0 else 0

    def _answer(self, body: bytes) -> None:
        if self._path == b"/v1/chat/completions":
            if _streamed(body):
                self._length, self._sent = len(body), 0
                self._transport.write(STREAM_HEAD)
                self._burst = BURST_EVENTS if BURSTS in body else 1
                self._slot = self._engine.add(self)
            else:
                self._transport.write(_chat_answer(len(body)))
        elif self._path in _PLAIN_PATHS:
            self._transport.write(_chat_answer(len(body)))
        elif self._path == b"/tokenize" and self._engine.tokenizes:
            self._transport.write(_tokenized(body))
        else:
            self._transport.write(_ANSWERS.get(self._path, _MISSING))

    def step(self) -> None:
        """Send the next event, or burst of events, in one write."""
        self._transport.write(b"".join([self._next() for _ in range(self._burst)]))

    def _next(self) -> bytes:
        if self._sent >= self._engine.events:
            return b""
        self._sent += 1
        stamp = STAMP_ZERO + time.monotonic_ns()
        if self._sent < self._engine.events:
            return (FIRST if self._sent == 1 else TOKENS[self._sent % len(TOKENS)]) % stamp
        self._slot.discard(self)
        return FINISH % stamp + _last_events(self._length)


def _streamed(body: bytes) -> bool:
    return len(body) <= _MAX_STREAM_BODY_BYTES and (
        b'"stream":true' in body or b'"stream": true' in body
    )


def serve(channel: "Connection[int, None]", settings: StubSettings) -> None:
    """Run a worker in this process: send its port, and end when the channel closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    uvloop.run(_serve(channel, settings))


async def _serve(channel: "Connection[int, None]", settings: StubSettings) -> None:
    loop = asyncio.get_running_loop()
    engine = StubEngine(settings)
    server = await loop.create_server(
        lambda: WorkerConnection(engine), "127.0.0.1", 0, backlog=4096
    )
    channel.send(server.sockets[0].getsockname()[1])
    gone = asyncio.Event()
    loop.add_reader(channel.fileno(), gone.set)
    await gone.wait()
