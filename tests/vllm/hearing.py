"""What engines publish, event by event, besides what a router makes of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec
import zmq

from tests.support import until
from tests.vllm.tiered import Tiered, step


class Event(NamedTuple):
    """One event of an engine."""

    kind: str
    medium: str
    hashes: list[int]
    fields: dict[str, Any]


class Hearing:
    """A separate subscriber to one engine."""

    def __init__(self, one: Tiered, socket: "zmq.Socket[bytes]") -> None:
        self._one, self._socket = one, socket

    def is_heard(self) -> bool:
        """Return whether an event arrives after a step."""
        step(self._one)
        return bool(self._socket.poll(500))

    def all(self) -> list[Event]:
        """Return all events since the last call, in order; those of the engine's next step are
        included."""
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
    """Listen to an engine, from when its events are known to arrive."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
    with context.socket(zmq.SUB) as socket:
        socket.linger = 0
        socket.connect(one.events)
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        heard = Hearing(one, socket)
        until(heard.is_heard, 60)
        heard.all()
        yield heard
