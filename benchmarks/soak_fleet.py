"""The soak's workers from above: each in a process, failing in turn, and back again."""

import os
import signal
import socket
from collections.abc import Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any, Self

from benchmarks import soak_worker
from benchmarks.bench import child
from benchmarks.soak_faults import Act, Chaos, Kind, Timeline
from benchmarks.soak_judge import Book, book
from benchmarks.soak_worker import Order, read_book

#: Before and after a worker is stopped in the middle of what it does, in seconds.
_BEFORE_S, _AFTER_S = 0.1, 0.5
#: Mean seconds from one fault to the next; and while the router warms up, so that the worst it
#: will see is behind it when its memory is looked at.
_EVERY_S, _HURRY_S = 2.5, 1.0


class Worker:
    """One worker: at the same port in all its lives."""

    def __init__(self, name: str, folder: Path, seed: int, *, stays: bool) -> None:
        self.name = name
        self.stays = stays
        self.timeline = Timeline()
        self.doing: Kind | None = None
        self.until = 0.0
        """When what it does is over."""
        self._book = folder / f"{name}.book"
        self._seed = seed
        self._life = ExitStack()
        self._channel: Connection[Any, Any] | None = None
        self._owed = 0
        """Answers that it has not given yet."""
        # Its port stays taken, and refuses, while it is dead.
        self._holder = socket.socket()
        self._holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._holder.bind(("127.0.0.1", 0))
        self.port: int = self._holder.getsockname()[1]

    def start(self) -> None:
        """Begin a life."""
        self._seed += 1
        work = child(soak_worker.serve, self.port, self._book, self._seed)
        self._channel, self._pid = self._life.enter_context(work)
        self._owed = 1

    def stop(self) -> None:
        """End it for good."""
        self._life.close()
        self._holder.close()

    def begin(self, act: Act, now: float) -> None:
        """Fail."""
        self.doing, self.until = act.kind, now + act.seconds
        if act.kind is not Kind.SLOW:
            self.timeline.unwell(now - _BEFORE_S)
        if act.kind is Kind.KILL:
            os.kill(self._pid, signal.SIGKILL)
            self._life.close()
            self._channel = None
            self.timeline.died(now, monotonic())
            self.timeline.blind(now - _BEFORE_S, monotonic() + _AFTER_S)
            return
        self._tell(Order(act.kind, act.seconds))
        if act.kind is Kind.FREEZE:
            self.timeline.blind(now - _BEFORE_S, now + act.seconds + _AFTER_S)
        elif act.kind is Kind.REFUSE:
            self.timeline.blind(now - _BEFORE_S, now + _AFTER_S)

    def end(self) -> None:
        """Be well again, soon."""
        if self._channel is None:
            self.start()
        else:
            self._tell(Order(None))
        self.doing = None

    def look(self, now: float) -> None:
        """Hear what it says. Raises EOFError if it has ended untold."""
        while self._channel is not None and self._channel.poll():
            self._channel.recv()
            self._owed -= 1
        if self._channel is not None and not self._owed and self.doing in {None, Kind.SLOW}:
            self.timeline.well(now)

    def _tell(self, order: Order) -> None:
        if self._channel is not None:
            self._channel.send(order)
            self._owed += 1

    def book(self) -> Book:
        """Return what it has read."""
        return book(self.name, self.timeline, read_book(self._book), stays=self.stays)


class Workers:
    """Those that stay, and one that comes and goes."""

    def __init__(
        self, folder: Path, count: int, seed: int, kinds: Sequence[Kind] = tuple(Kind)
    ) -> None:
        self._random = Random(seed)
        self._chaos = Chaos(self._random, kinds)
        self.staying = [
            Worker(f"worker-{n}", folder, seed + 1000 * n, stays=True) for n in range(1, count + 1)
        ]
        self.guest = Worker("guest", folder, seed, stays=False)
        self.faults: list[tuple[float, Act]] = []
        """What has happened, and when."""
        self._next = 0.0

    def __enter__(self) -> Self:
        try:
            for worker in self.all:
                worker.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as stack:
            for worker in self.all:
                stack.callback(worker.stop)

    @property
    def all(self) -> list[Worker]:
        """Every one."""
        return [*self.staying, self.guest]

    def look(self) -> None:
        """Hear what they say. Raises EOFError if one has ended untold."""
        for worker in self.all:
            worker.look(monotonic())

    def step(self, *, hurry: bool) -> None:
        """Let one fail, or be well again, if it is time."""
        now = monotonic()
        for worker in self.staying:
            if worker.doing is not None and now >= worker.until:
                worker.end()
        if now < self._next:
            return
        self._next = now + self._random.expovariate(1 / (_HURRY_S if hurry else _EVERY_S))
        since = [worker.timeline.since for worker in self.staying]
        act = self._chaos.next(now, since, [worker.doing for worker in self.staying])
        if act is not None:
            self.staying[act.worker].begin(act, now)
            self.faults.append((now, act))

    def heal(self) -> None:
        """Let all be well again."""
        for worker in self.staying:
            if worker.doing is not None:
                worker.end()

    @property
    def well(self) -> bool:
        """All are."""
        return all(worker.timeline.since is not None for worker in self.all)

    def books(self) -> list[Book]:
        """Return what they have read."""
        return [worker.book() for worker in self.all]
