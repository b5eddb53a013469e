"""Control of the soak's workers: each runs in a process, fails from time to time, and recovers."""

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

from benchmarks.harness.bench import child
from benchmarks.soak import worker as soak_worker
from benchmarks.soak.faults import Act, Book, Chaos, Timeline, book
from benchmarks.soak.worker import Kind, Order, read_book

#: Margins in seconds before and after a worker is interrupted.
_BEFORE_S, _AFTER_S = 0.1, 0.5
#: Mean seconds from one fault to the next: normally; and while the router warms up, so that its
#: worst moment is over before its memory is measured.
_EVERY_S, _HURRY_S = 2.5, 1.0


class Worker:
    """One worker, which keeps its port when it is killed and started again."""

    def __init__(self, name: str, folder: Path, seed: int, *, stays: bool) -> None:
        self.name = name
        self.stays = stays
        self.timeline = Timeline()
        self.doing: Kind | None = None
        self.until = 0.0
        """When its current fault ends."""
        self._book = folder / f"{name}.book"
        self._seed = seed
        self._life = ExitStack()
        self._channel: Connection[Any, Any] | None = None
        self._owed = 0
        """Answers that it still owes on its channel: to its start and to each order."""
        # Keeps the port reserved, and connections to it refused, while the worker is dead.
        self._holder = socket.socket()
        self._holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._holder.bind(("127.0.0.1", 0))
        self.port: int = self._holder.getsockname()[1]

    def start(self) -> None:
        """Start the worker's process."""
        self._seed += 1
        work = child(soak_worker.serve, self.port, self._book, self._seed)
        self._channel, self._pid = self._life.enter_context(work)
        self._owed = 1

    def stop(self) -> None:
        """Stop the worker for good."""
        self._life.close()
        self._holder.close()

    def begin(self, act: Act, now: float) -> None:
        """Begin a fault."""
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
        """End the fault; the worker is well once it has confirmed that."""
        if self._channel is None:
            self.start()
        else:
            self._tell(Order(None))
        self.doing = None

    def look(self, now: float) -> None:
        """Receive its messages. Raises EOFError if it has ended unexpectedly."""
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
        """Return its record of the requests it has read."""
        return book(self.name, self.timeline, read_book(self._book), stays=self.stays)


class Workers:
    """All workers: those that stay in the settings, and the guest that comes and goes."""

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
        """The faults so far, with their times."""
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
        """All workers, the guest last."""
        return [*self.staying, self.guest]

    def look(self) -> None:
        """Receive their messages. Raises EOFError if one has ended unexpectedly."""
        for worker in self.all:
            worker.look(monotonic())

    def step(self, *, hurry: bool) -> None:
        """End the faults that are over, and begin a new one if it is time."""
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
        """End all faults."""
        for worker in self.staying:
            if worker.doing is not None:
                worker.end()

    @property
    def well(self) -> bool:
        """Whether all workers are well."""
        return all(worker.timeline.since is not None for worker in self.all)

    def books(self) -> list[Book]:
        """Return every worker's record of the requests it has read."""
        return [worker.book() for worker in self.all]
