"""What engines publish, word by word, beside what a router makes of it."""

from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, NamedTuple, Self

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


class Hearing(AbstractContextManager["Hearing"]):
    """A subscriber of its own to one engine."""

    def __init__(self, one: Tiered) -> None:
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.SUB)
        self._socket.connect(one.events)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._one = one

    def __enter__(self) -> Self:
        """Wait until it is heard."""

        def heard() -> bool:
            step(self._one)
            return bool(self._socket.poll(500))

        until(heard, 60)
        self.all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Listen no more."""
        self._socket.close(linger=0)

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
