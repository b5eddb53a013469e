"""KV events over ZeroMQ, as a vLLM engine sends them (`vllm/distributed/kv_events.py`).

A batch is the msgpack array `[timestamp, events, data_parallel_rank]`. Since vLLM 0.24 an event
is a map with a `type`, without optional fields that have their default value. Up to 0.23 it was
an array that begins with the type, with every field at a fixed position.

A PUB socket sends `[topic][sequence: 8 bytes big-endian][payload]`, one message per engine step
that changed the cache, numbered from 0. A ROUTER socket answers `["", start: 8 bytes]` with every
buffered message from `start` on, as `["", topic, sequence, payload]`, then `["", "", ff x 8, ""]`.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Any, Literal

import msgspec
import zmq
import zmq.asyncio

from simulator.kv.blocks import Change, RemovedEvent, StoredEvent

Encoding = Literal["map", "array"]

#: How many messages are kept for replay (vLLM `buffer_steps`).
BUFFER_STEPS = 10_000
_HIGH_WATER_MARK = 100_000
_REPLAY_END = b"\xff" * 8
#: How long binding is retried while the address is taken by a publisher just closed.
_BIND_TIMEOUT_S = 2.0

_GROUP = 0
_KIND = "full_attention"

_encode = msgspec.msgpack.Encoder().encode


def encode_batch(changes: Sequence[Change], timestamp: float, encoding: Encoding) -> bytes:
    """Encode one batch; `timestamp` is in seconds since the epoch, the rank is always 0."""
    event = _as_map if encoding == "map" else _as_array
    return _encode([timestamp, [event(change) for change in changes], 0])


def _as_map(change: Change) -> dict[str, Any]:
    if isinstance(change, StoredEvent):
        return {
            "type": "BlockStored",
            "block_hashes": change.hashes,
            "parent_block_hash": change.parent,
            "token_ids": change.token_ids.tolist(),
            "block_size": change.block_size,
            "lora_id": None,
            "medium": change.medium,
            "lora_name": change.lora_name,
            "extra_keys": change.extra_keys,
            "group_idx": _GROUP,
            "kv_cache_spec_kind": _KIND,
            **({"locality": "REMOTE"} if change.remote else {}),
        }
    if isinstance(change, RemovedEvent):
        return {
            "type": "BlockRemoved",
            "block_hashes": [change.hash],
            "medium": change.medium,
            "group_idx": _GROUP,
        }
    return {"type": "AllBlocksCleared"}


def _as_array(change: Change) -> list[Any]:
    if isinstance(change, StoredEvent):
        return [
            "BlockStored",
            change.hashes,
            change.parent,
            change.token_ids.tolist(),
            change.block_size,
            None,
            change.medium,
            change.lora_name,
            change.extra_keys,
            _GROUP,
            _KIND,
            None,
        ]
    if isinstance(change, RemovedEvent):
        return ["BlockRemoved", [change.hash], change.medium, _GROUP]
    return ["AllBlocksCleared"]


class ZmqEventPublisher:
    """The event stream of one worker: sequence numbers, buffer and sockets."""

    def __init__(
        self,
        context: zmq.asyncio.Context,
        topic: str,
        encoding: Encoding = "map",
        *,
        endpoint: str = "tcp://127.0.0.1:*",
        replay_endpoint: str = "tcp://127.0.0.1:*",
        buffer_steps: int = BUFFER_STEPS,
    ) -> None:
        self.topic = topic
        self.encoding = encoding
        #: Where to connect a SUB socket; has the real port after `open`.
        self.endpoint = endpoint
        #: Where to connect a DEALER socket; has the real port after `open`.
        self.replay_endpoint = replay_endpoint
        self._context = context
        self._topic = topic.encode()
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=buffer_steps)
        self._next = 0
        self._pub: zmq.Socket[bytes] | None = None
        self._router: zmq.asyncio.Socket | None = None
        self._answering: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Bind both sockets; raise OSError if an address is taken."""
        plain: zmq.Context[zmq.Socket[bytes]] = zmq.Context.shadow(self._context)
        self._pub = plain.socket(zmq.PUB)
        self._pub.set_hwm(_HIGH_WATER_MARK)
        self._router = self._context.socket(zmq.ROUTER)
        self._router.set_hwm(2 * (BUFFER_STEPS + 1))
        if "[" in self.endpoint:  # an IPv6 address, which ZeroMQ takes only if told so
            for socket in (self._pub, self._router):
                socket.setsockopt(zmq.IPV6, 1)
        try:
            self.endpoint = await _bind(self._pub, self.endpoint)
            self.replay_endpoint = await _bind(self._router, self.replay_endpoint)
        except OSError:
            await self.close()
            raise
        self._answering = asyncio.create_task(self._answer(self._router))

    async def close(self) -> None:
        """Close both sockets and forget the stream: the next `open` begins at sequence 0."""
        if self._answering is not None:
            self._answering.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._answering
            self._answering = None
        for socket in (self._pub, self._router):
            if socket is not None:
                socket.close(linger=0)
        self._pub = self._router = None
        self._buffer.clear()
        self._next = 0

    def publish(self, changes: Sequence[Change]) -> None:
        """Send one batch without blocking; a subscriber that is too slow misses it."""
        if self._pub is None:
            return
        sequence, self._next = self._next, self._next + 1
        payload = encode_batch(changes, time.time(), self.encoding)
        self._buffer.append((sequence, payload))
        self._pub.send_multipart((self._topic, sequence.to_bytes(8, "big"), payload), zmq.NOBLOCK)

    def describe(self) -> dict[str, Any]:
        """Return this stream's entry in `/kv_event_sources`."""
        return {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": self.endpoint,
            "replay_endpoint": self.replay_endpoint,
            "buffer_steps": self._buffer.maxlen,
            "hwm": _HIGH_WATER_MARK,
            "max_queue_size": _HIGH_WATER_MARK,
            "topic": self.topic,
        }

    async def _answer(self, router: zmq.asyncio.Socket) -> None:
        """Answer replay requests until closed."""
        while True:
            frames = await router.recv_multipart()
            if len(frames) == 3 and len(frames[2]) == 8:  # [client, "", start]
                await self._replay(router, frames[0], int.from_bytes(frames[2], "big"))

    async def _replay(self, router: zmq.asyncio.Socket, client: bytes, start: int) -> None:
        oldest = self._next - len(self._buffer)
        for sequence, payload in list(islice(self._buffer, max(0, start - oldest), None)):
            number = sequence.to_bytes(8, "big")
            await router.send_multipart([client, b"", self._topic, number, payload])
        await router.send_multipart([client, b"", b"", _REPLAY_END, b""])


async def _bind(socket: Any, endpoint: str) -> str:  # noqa: ANN401 - plain and asyncio sockets
    """Bind, retrying while a socket closed a moment ago holds the address; return the endpoint."""
    deadline = time.monotonic() + _BIND_TIMEOUT_S
    while True:
        try:
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            if error.errno != zmq.EADDRINUSE or time.monotonic() > deadline:
                raise OSError(error.errno, f"cannot bind {endpoint}: {error}") from error
            await asyncio.sleep(0.02)
        else:
            return str(socket.getsockopt_string(zmq.LAST_ENDPOINT))
