"""Messages between two of the router's processes, over a private socket pair.

Either side may send a message (`tell`) or a question (`ask`). Each received message is handled in
its own task, so a slow answer delays nothing else. The channel ends with the other process.

`watch` asks at every beat whether the other process still answers, and counts the missed ones.
Beats are counted, not seconds: if the machine was suspended, or the asking process got no CPU, at
most one beat is missed, however long that took.
"""

import asyncio
import logging
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from enum import Enum
from itertools import count
from typing import Self

import msgspec

log = logging.getLogger("warmroute.processes")

_LENGTH = struct.Struct("!I")


class Lost(Exception):
    """The other process is gone."""


class Refusal(Exception):
    """The other process refuses a request; the message is a sentence that says why."""


class _Message(msgspec.Struct, array_like=True):
    number: int
    """Number of a question and of its answer; 0 if no answer is wanted."""
    what: str
    """Name of the message; empty for an answer."""
    body: bytes
    refused: bool = False


_decode = msgspec.msgpack.Decoder(_Message).decode
_encode = msgspec.msgpack.Encoder().encode

#: Handles a message (its name and its body) and returns the answer. Raises Refusal.
Hear = Callable[[str, bytes], Awaitable[bytes]]


def first(end: socket.socket) -> bytes:
    """Block until the first message and return its body; for use without a loop. Raises Lost."""
    (length,) = _LENGTH.unpack(_exactly(end, _LENGTH.size))
    return _decode(_exactly(end, length)).body


def _exactly(end: socket.socket, length: int) -> bytes:
    data = end.recv(length, socket.MSG_WAITALL)
    if len(data) < length:
        raise Lost
    return data


class Channel:
    """One end of a channel. Messages are received only while `run` is running."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, hear: Hear
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._hear = hear
        self._questions: dict[int, asyncio.Future[bytes]] = {}
        self._numbers = count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._lost = False

    @classmethod
    async def open(cls, end: socket.socket, hear: Hear) -> Self:
        """Make a channel of one end of a socket pair; `hear` handles its messages."""
        return cls(*await asyncio.open_unix_connection(sock=end), hear)

    async def run(self) -> None:
        """Receive messages until the other process is gone."""
        read = self._reader.readexactly
        try:
            while True:
                (length,) = _LENGTH.unpack(await read(_LENGTH.size))
                self._take(_decode(await read(length)))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._lost = True
            self._writer.close()
            for task in tuple(self._tasks):
                task.cancel()
            for question in self._questions.values():
                if not question.done():
                    question.set_exception(Lost())

    def tell(self, what: str, body: bytes = b"") -> None:
        """Send a message; it is dropped if the other process is gone."""
        self._send(_Message(0, what, body))

    async def ask(self, what: str, body: bytes = b"") -> bytes:
        """Send a question and wait, without a limit, for the answer. Raises Lost, Refusal."""
        if self._lost:
            raise Lost
        number = next(self._numbers)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._questions[number] = answer
        try:
            self._send(_Message(number, what, body))
            return await answer
        finally:
            del self._questions[number]

    def _send(self, message: _Message) -> None:
        # A transport that has failed is closed before `run` hears of it, and raises if written to.
        if not (self._lost or self._writer.is_closing()):
            data = _encode(message)
            self._writer.write(_LENGTH.pack(len(data)) + data)

    def _take(self, message: _Message) -> None:
        if message.what:
            task = asyncio.create_task(self._answer(message))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        question = self._questions.get(message.number)
        if question is None or question.done():
            return  # the caller has stopped waiting
        if message.refused:
            question.set_exception(Refusal(message.body.decode()))
        else:
            question.set_result(message.body)

    async def _answer(self, message: _Message) -> None:
        refused = False
        try:
            body = await self._hear(message.what, message.body)
        except Refusal as refusal:
            body, refused = str(refusal).encode(), True
        except Exception as error:
            log.exception("internal error: %s", message.what)
            body, refused = f"{type(error).__name__}: {error}".encode(), True
        if message.number:
            self._send(_Message(message.number, "", body, refused))


@dataclass(frozen=True, slots=True)
class ChannelTimeouts:
    """How many beats a process may miss."""

    beat_s: float = 1.0
    """Seconds between two beats."""
    silent: int = 3
    """Beats missed in a row after which it gets nothing new."""
    dead: int = 10
    """Beats missed in a row after which it is given up."""
    start: int = 600
    """The same until it serves: a machine may be busy, and a strategy may load a lot."""

    @property
    def starting(self) -> "ChannelTimeouts":
        """With a process that has not begun to serve."""
        return replace(self, silent=self.start, dead=self.start)

    @property
    def silent_s(self) -> float:
        """Seconds without an answer, at least, until it counts as silent."""
        return self.silent * self.beat_s

    @property
    def dead_s(self) -> float:
        """Seconds without an answer, at least, until it counts as dead."""
        return self.dead * self.beat_s


USUAL = ChannelTimeouts()


class Sign(Enum):
    """What has changed at a beat."""

    SILENT = "silent"
    BACK = "back"
    """It answers again after it was silent."""
    DEAD = "dead"


class Beats:
    """Counts the missed beats of one process. Pure."""

    def __init__(self, timeouts: ChannelTimeouts) -> None:
        self._timeouts = timeouts
        self._missed = 0

    def count(self, *, answered: bool) -> Sign | None:
        """Count one more beat; return what has changed, if anything."""
        before, self._missed = self._missed, 0 if answered else self._missed + 1
        if answered:
            return Sign.BACK if before >= self._timeouts.silent else None
        if self._missed == self._timeouts.dead:
            return Sign.DEAD
        return Sign.SILENT if self._missed == self._timeouts.silent else None


async def watch(
    channel: Channel, timeouts: ChannelTimeouts, changed: Callable[[Sign], None]
) -> None:
    """Watch a process until cancelled; call `changed` at every change."""
    beats = Beats(timeouts)
    # One question stays open until it is answered: a process that answers late does not hang.
    question = asyncio.create_task(_answers(channel))
    try:
        while True:
            await asyncio.sleep(timeouts.beat_s)
            answered = question.done() and question.result()
            if answered:
                question = asyncio.create_task(_answers(channel))
            sign = beats.count(answered=answered)
            if sign is not None:
                changed(sign)
    finally:
        question.cancel()


async def _answers(channel: Channel) -> bool:
    """Wait for its answer; False if its end of the channel is gone, even if it still runs."""
    try:
        await channel.ask("alive")
    except Lost:
        return False
    except Refusal:  # a refusal is an answer, too
        pass
    return True
