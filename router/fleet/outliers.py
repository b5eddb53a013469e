"""Tells workers that answer badly from requests that are answered badly: outlier detection.

A bad answer alone says little: it may be the worker's fault or the request's. So the worker is
asked last until a few requests that would have gone there were sent to its peers: one, and twice as
many after each further bad answer. If the peers answer those, the worker is an outlier; if one that
answered everything so far fails as well, it was the requests. A quick refusal so never looks like
a quick answer, and one client's bad requests take no worker out.

All of it is kept by path: a worker without a chat template refuses chats only. While no worker is
in doubt, a request costs one check of `Outliers`.
"""

from collections.abc import Iterable, Sequence
from math import ceil
from typing import Final, Protocol, TypeVar

from strategies.api import Candidate, Decision

#: Most requests that are sent elsewhere before a worker in doubt is asked again.
MAX_DIVERTED: Final = 256
#: Most paths of which anything is kept; there are not as many endpoints.
MAX_PATHS: Final = 128
#: So many outcomes of a path are remembered, or up to twice as many: then they count half.
MAX_OUTCOMES: Final = 256


class Doubt:
    """What speaks against one worker on one path, since its last good answer."""

    __slots__ = (
        "_alike",
        "_answered",
        "_bad",
        "_blind",
        "_others",
        "_passed",
        "_width",
        "ended",
        "row",
        "since",
        "why",
    )

    def __init__(self) -> None:
        self.since = 0.0
        """When its last bad answer came."""
        self.why = ""
        """What that was."""
        self.row = 0
        """Bad answers in a row, each after its peers have answered well instead."""
        self._bad = self._blind = 0
        self._answered = self._alike = 0
        self._width = self._passed = 0
        self._others = set[Doubt]()
        self.ended = False
        """The worker has given a good answer since, or was restarted."""

    @property
    def last(self) -> bool:
        """Whether the worker is asked last."""
        return self._passed < self._width

    @property
    def contrasts(self) -> bool:
        """Whether it is asked less because its peers answer what it does not."""
        return self.row > 1

    def bad(self, now: float, why: str, failures: int, *, refusal: bool) -> None:
        """Note one more bad answer; after so many `failures` in a row a worker can be ejected."""
        if self._answered > self._alike or not self._bad:
            self.row += 1
        elif self._answered == 0:
            self._blind += 1
        if self._alike > self._answered:
            self.row //= 2
        self._answered = self._alike = 0
        self._bad = min(self._bad + 1, 30)
        self.since, self.why = now, why
        if refusal:  # a single one is most likely the request's fault
            width = 1 << self._bad >> 2
        else:  # it is ejected after so many if it is the worker's fault
            width = 1 << min(30, self._blind + max(0, self._bad - failures))
        # While it is not known that its peers answer, it is not passed over for long.
        self._passed, self._width = 0, min(width, MAX_DIVERTED, 4 << min(self.row, 10))

    def asked(self) -> None:
        """Note that the worker is asked: nothing more than this until the answer is known."""
        self._passed = 0

    def passed(self) -> None:
        """Note that a request that would have gone to the worker is sent elsewhere."""
        self._passed += 1

    def answered(self) -> None:
        """Note that a request was sent elsewhere instead, and answered there."""
        self._answered += 1

    def unanswered(self) -> None:
        """Take that back: the answer had begun well, and ended badly."""
        self._answered = max(0, self._answered - 1)

    def freely(self) -> None:
        """Do not ask it last until its next bad answer: an answer has begun well, or it is out."""
        self._passed = self._width

    def shared(self) -> None:
        """Note that one was sent to a peer that is well, and failed there too."""
        self._alike += 1
        if self._alike > self._answered:
            self._width //= 2

    def follows(self, others: "Iterable[Doubt]") -> None:
        """Note that a request failed here that would have gone to those `others`."""
        self._others = {doubt for doubt in (*self._others, *others) if not doubt.ended}

    def over(self) -> int:
        """End it: the worker is well, and so those that failed alike may be.

        Return how many bad answers were the requests' fault.
        """
        self.ended = True
        others, self._others = self._others, set()
        for other in others:
            other.shared()
        return self._bad


class Member(Protocol):
    """A worker of a pool."""

    doubts: dict[str, Doubt]


M = TypeVar("M", bound=Member)


class _Path:
    """How requests of one path end, while a worker is in doubt there."""

    __slots__ = ("answered", "faulty")

    def __init__(self) -> None:
        self.answered = 0.0
        """Those that were answered well."""
        self.faulty = 0.0
        """Those that were answered badly, by workers that answered others before and after."""

    def add(self, answered: int, faulty: int) -> None:
        self.answered += answered
        self.faulty += faulty
        if self.answered + self.faulty > 2 * MAX_OUTCOMES:
            self.answered, self.faulty = self.answered / 2, self.faulty / 2


class Outliers:
    """The workers of one pool that are in doubt. All times are in seconds of the caller's clock."""

    def __init__(self) -> None:
        self.failures = 1
        """How many failures in a row may eject a worker."""
        self._doubted = set[Member]()
        self._paths: dict[str, _Path] = {}

    def __bool__(self) -> bool:
        """Whether any worker is in doubt: otherwise only `bad` needs to be called."""
        return bool(self._doubted)

    def follow(self, members: Sequence[Member]) -> None:
        """Take these members, with what speaks against them."""
        self._doubted = {member for member in members if member.doubts}

    def forget(self, member: Member) -> None:
        """Forget what speaks against a worker: it was restarted."""
        self._doubted.discard(member)
        for doubt in member.doubts.values():
            doubt.ended = True
        member.doubts.clear()

    def first(self, path: str, workers: Sequence[M]) -> Sequence[M]:
        """Return the workers that are not asked last on this path, or all of them if all are."""
        preferred = [
            worker for worker in workers if (d := worker.doubts.get(path)) is None or not d.last
        ]
        return preferred or workers

    def sent(self, path: str, choice: Candidate, decision: Decision) -> Sequence[Doubt]:
        """Note that a request is sent; return the doubts for which it went elsewhere.

        Those of workers that would have been as cheap, or cheaper.
        """
        worker: Member = choice.worker  # type: ignore[assignment]  # our fleet's own
        own = worker.doubts.get(path)
        if own is not None:
            own.asked()
        doubts = list[Doubt]()
        if decision.aside:
            most = choice.cost.total
            for other in decision.candidates[-decision.aside :]:
                doubt = other.worker.doubts.get(path)  # type: ignore[attr-defined]
                if doubt is not None and doubt is not own and other.cost.total <= most:
                    doubt.passed()
                    doubts.append(doubt)
        return doubts

    def answering(self, path: str, worker: Member, instead: Sequence[Doubt]) -> None:
        """Note that an answer has begun well; `instead` is what `sent` returned."""
        own = worker.doubts.get(path)
        if own is not None:
            own.freely()
        for doubt in instead:
            doubt.answered()
        self._path(path).add(1, 0)

    def good(self, path: str, worker: Member) -> None:
        """Note an answer that was good to the end: the bad ones before were not its fault."""
        own = worker.doubts.pop(path, None)
        if own is not None:
            self._path(path).add(0, own.over())
            if not worker.doubts:
                self._doubted.discard(worker)

    def bad(
        self,
        path: str,
        worker: Member,
        instead: Sequence[Doubt],
        now: float,
        why: str,
        *,
        sent: float,
        refusal: bool,
        begun: bool = False,
    ) -> None:
        """Note a bad answer to a request of the time `sent`, and `why` it is one.

        It says nothing new if the request was sent before the last bad answer was known: requests
        that come together may be alike. `refusal`: it is a 4xx. `begun`: it had begun well, as
        `answering` was told.
        """
        if begun:
            self._path(path).add(-1, 0)
            for doubt in instead:
                doubt.unanswered()
        own = worker.doubts.get(path)
        if own is None:
            for doubt in instead:
                doubt.shared()
            if len(worker.doubts) >= MAX_PATHS:
                self.forget(worker)
            own = worker.doubts[path] = Doubt()
            self._doubted.add(worker)
        elif sent < own.since:
            return
        else:
            own.follows(instead)
        own.bad(now, why, self.failures, refusal=refusal)

    def ejected(self, path: str, worker: Member) -> None:
        """Note that a worker is ejected: its breaker decides when it is asked again."""
        worker.doubts[path].freely()

    def outlier(self, path: str, worker: Member) -> bool:
        """Whether a worker fails what its peers answer, often enough to be ejected.

        The more other workers fail as well now and then, the more it takes.
        """
        own = worker.doubts.get(path)
        if own is None:
            return False
        failures, seen = self.failures, self._paths.get(path)
        if seen is not None and seen.faulty:
            # Twice, as those that prefer one worker may fail there more often than on average.
            failures = ceil(failures * (1.0 + 2.0 * seen.faulty / max(seen.answered, 1.0)))
        return own.row >= failures

    def _path(self, path: str) -> _Path:
        record = self._paths.get(path)
        if record is None:
            if len(self._paths) >= MAX_PATHS:
                self._paths.clear()
            record = self._paths[path] = _Path()
        return record


#: Tolerance for shares, so that floating point makes 0.29 of 100 workers 29, not 28.
