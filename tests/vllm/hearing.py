"""What engines publish, word by word, beside what a router makes of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec
import zmq

from tests.support import until
from tests.vllm.tiered import Tiered, step


class Event(NamedTuple):
    """One that an engine told."""

    kind: str
    medium: str
    hashes: list[int]
    fields: dict[str, Any]


class Hearing:
    """A subscriber of its own to one engine."""

    def __init__(self, one: Tiered, socket: "zmq.Socket[bytes]") -> None:
        self._one, self._socket = one, socket

    def is_heard(self) -> bool:
        """Whether it tells anything with a step."""
        step(self._one)
        return bool(self._socket.poll(500))

    def all(self) -> list[Event]:
        """Everything since it was last asked, in the order in which it was told; what the engine
        tells with its next step is among it."""
        step(self._one)
        events = []
        while self._socket.poll(1000):
            payload = self._socket.recv_multipart()[2]
            for one in msgspec.msgpack.decode(payload)[1]:
                hashes = one.get("block_hashes", [])
                events.append(Event(one["type"], one.get("medium", ""), hashes, one))
        return events


@contextmanager
def hearing(one: Tiered) -> Iterator[Hearing]:
    """Listen, from when it is heard."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    with context.socket(zmq.SUB) as socket:
        socket.linger = 0
        socket.connect(one.events)
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        heard = Hearing(one, socket)
        until(heard.is_heard, 60)
        heard.all()
        yield heard
