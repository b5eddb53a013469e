"""The soak's workers from outside: each fails from time to time and recovers.

`Chaos` chooses the next fault. At least one worker is always well, and has been for long enough
that the router knows it; so whatever the others do, there is one that could answer. A `Timeline`
records when a worker was well, and a `Book` which requests it has read.
"""

import os
import signal
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any, NamedTuple, Self

from benchmarks.harness.processes import child
from benchmarks.soak import worker as soak_worker
from benchmarks.soak.worker import BookEntry, FaultKind, SoakOrder, read_book

#: Seconds after recovery until a worker counts as usable: by then the router has probed it.
RECOVERY_S = 8.0
#: Seconds without a new fault after a worker's recovery, so that it gets some requests.
_FAULT_PAUSE_S = 2.0
#: Most workers that are full at once: fewer than `limits.attempts`, because the router is not to
#: blame if every worker that it tries is full.
_MAX_FULL = 2
#: Margins in seconds before and after a worker is interrupted.
_MARGIN_BEFORE_S, _MARGIN_AFTER_S = 0.1, 0.5
#: Mean seconds from one fault to the next: normally; and while the router warms up, so that its
#: worst moment is over before its memory is measured.
_FAULT_INTERVAL_S, _WARM_UP_FAULT_INTERVAL_S = 2.5, 1.0


class InjectedFault(NamedTuple):
    """One worker's next fault."""

    worker: int
    kind: FaultKind
    seconds: float


class Chaos:
    """Chooses the next fault at random."""

    def __init__(self, random: Random, kinds: Sequence[FaultKind] = tuple(FaultKind)) -> None:
        self._random = random
        self._kinds = kinds

    def next(
        self, now: float, since: Sequence[float | None], busy: Sequence[FaultKind | None]
    ) -> InjectedFault | None:
        """Choose a worker and its fault; None if no worker may fail now.

        `since` has for each worker the time since when it is well, None if it is not; `busy` has
        its current fault, if any.
        """
        able = [place for place, then in enumerate(since) if _well_for(_FAULT_PAUSE_S, then, now)]
        sound = {place for place, then in enumerate(since) if _well_for(RECOVERY_S, then, now)}
        able = [place for place in able if busy[place] is None and sound - {place}]
        kinds = list(self._kinds)
        if sum(kind is FaultKind.FULL for kind in busy) >= _MAX_FULL and FaultKind.FULL in kinds:
            kinds.remove(FaultKind.FULL)
        if not able or not kinds:
            return None
        place, kind = self._random.choice(able), self._random.choice(kinds)
        return InjectedFault(place, kind, self._random.uniform(1.0, 6.0))


def _well_for(seconds: float, since: float | None, now: float) -> bool:
    return since is not None and now - since >= seconds


class Timeline:
    """When one worker was well, in monotonic time, which all processes share."""

    def __init__(self) -> None:
        self._spells: list[tuple[float, float]] = []
        self._blind: list[tuple[float, float]] = []
        self._deaths: list[tuple[float, float]] = []
        self.since: float | None = None
        """Since when the worker is well; None if it is not."""

    def well(self, now: float) -> None:
        """Record that the worker is well from `now` on."""
        if self.since is None:
            self.since = now

    def unwell(self, now: float) -> None:
        """Record that the worker is not well from `now` on."""
        if self.since is not None:
            self._spells.append((self.since, now))
            self.since = None

    def blind(self, start: float, end: float) -> None:
        """Record a time for which its book may miss requests, because it could not write them."""
        self._blind.append((start, end))

    def died(self, start: float, end: float) -> None:
        """Record that it was killed, with all its requests, at some time between these two."""
        self._deaths.append((start, end))

    def died_within(self, start: float, end: float) -> bool:
        """Return true if it may have been killed in this time."""
        return any(first <= end and start <= last for first, last in self._deaths)

    def well_from(self, start: float, end: float) -> bool:
        """Return true if it was well during all of this time."""
        if self.since is not None and self.since <= start:
            return True
        return any(first <= start and end <= last for first, last in self._spells)

    def blind_within(self, start: float, end: float) -> bool:
        """Return true if this time overlaps one for which its book may miss requests."""
        return any(first <= end and start <= last for first, last in self._blind)


@dataclass(frozen=True, slots=True)
class Book:
    """The requests that one worker has read."""

    name: str
    timeline: Timeline
    stays: bool
    """Whether it is in the settings all the time."""
    read: Mapping[int, float]
    """When it read each request, by number; those that it refused are left out."""


def book(name: str, timeline: Timeline, entries: Iterable[BookEntry], *, stays: bool) -> Book:
    """Make a book from a worker's entries."""
    read = {entry.number: entry.at for entry in entries if not entry.refused}
    return Book(name, timeline, stays, read)


class FailingWorker:
    """One worker, which keeps its port when it is killed and started again."""

    def __init__(self, name: str, folder: Path, seed: int, *, stays: bool) -> None:
        self.name = name
        self.stays = stays
        self.timeline = Timeline()
        self.doing: FaultKind | None = None
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

    def begin(self, act: InjectedFault, now: float) -> None:
        """Begin a fault."""
        self.doing, self.until = act.kind, now + act.seconds
        if act.kind is not FaultKind.SLOW:
            self.timeline.unwell(now - _MARGIN_BEFORE_S)
        if act.kind is FaultKind.KILL:
            os.kill(self._pid, signal.SIGKILL)
            self._life.close()
            self._channel = None
            self.timeline.died(now, monotonic())
            self.timeline.blind(now - _MARGIN_BEFORE_S, monotonic() + _MARGIN_AFTER_S)
            return
        self._tell(SoakOrder(act.kind, act.seconds))
        if act.kind is FaultKind.FREEZE:
            self.timeline.blind(now - _MARGIN_BEFORE_S, now + act.seconds + _MARGIN_AFTER_S)
        elif act.kind is FaultKind.REFUSE:
            self.timeline.blind(now - _MARGIN_BEFORE_S, now + _MARGIN_AFTER_S)

    def end(self) -> None:
        """End the fault; the worker is well once it has confirmed that."""
        if self._channel is None:
            self.start()
        else:
            self._tell(SoakOrder(None))
        self.doing = None

    def state(self, now: float) -> None:
        """Receive its messages. Raises EOFError if it has ended unexpectedly."""
        while self._channel is not None and self._channel.poll():
            self._channel.recv()
            self._owed -= 1
        if self._channel is not None and not self._owed and self.doing in {None, FaultKind.SLOW}:
            self.timeline.well(now)

    def _tell(self, order: SoakOrder) -> None:
        if self._channel is not None:
            self._channel.send(order)
            self._owed += 1

    def book(self) -> Book:
        """Return its record of the requests it has read."""
        return book(self.name, self.timeline, read_book(self._book), stays=self.stays)


class Workers:
    """All workers: those that stay in the settings, and the guest that comes and goes."""

    def __init__(
        self, folder: Path, count: int, seed: int, kinds: Sequence[FaultKind] = tuple(FaultKind)
    ) -> None:
        self._random = Random(seed)
        self._chaos = Chaos(self._random, kinds)
        self.staying = [
            FailingWorker(f"worker-{n}", folder, seed + 1000 * n, stays=True)
            for n in range(1, count + 1)
        ]
        self.guest = FailingWorker("guest", folder, seed, stays=False)
        self.faults: list[tuple[float, InjectedFault]] = []
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
    def all(self) -> list[FailingWorker]:
        """All workers, the guest last."""
        return [*self.staying, self.guest]

    def state(self) -> None:
        """Receive their messages. Raises EOFError if one has ended unexpectedly."""
        for worker in self.all:
            worker.state(monotonic())

    def step(self, *, hurry: bool) -> None:
        """End the faults that are over, and begin a new one if it is time."""
        now = monotonic()
        for worker in self.staying:
            if worker.doing is not None and now >= worker.until:
                worker.end()
        if now < self._next:
            return
        self._next = now + self._random.expovariate(
            1 / (_WARM_UP_FAULT_INTERVAL_S if hurry else _FAULT_INTERVAL_S)
        )
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
        """Return true if all workers are well."""
        return all(worker.timeline.since is not None for worker in self.all)

    def books(self) -> list[Book]:
        """Return every worker's record of the requests it has read."""
        return [worker.book() for worker in self.all]
