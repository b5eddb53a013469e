"""One engine's event stream as a state machine: no event twice, none out of order, no blind spot.

Engines number their batches from 0 and drop those that a subscriber is too slow for; what was
missed can be asked for again, as long as it is buffered. Two marks tell what is what: `live`, the
last number heard, and `applied`, the last one handed on.

1. A live number that does not rise is a new engine process: everything it held is gone.
2. The next number is handed on; one that was handed on already is dropped.
3. A higher one shows a gap: it waits, and what is missing is asked for. Replays begin no sooner
   than a cooldown after each other, for an engine that replays publishes nothing meanwhile.
4. What a replay cannot bring any more is lost: everything is cleared and counted anew from there.
   A hole in a replay is asked for again some times; then it is passed over.
5. A replay begins with the last message that was handed on: is it another one now, it comes from
   another process. So it is with a live message that a replay has brought before.
6. Where a replay failed by itself, the whole history is asked for once more, later and later.

No sockets, no clock: times are arguments, in seconds of any clock; what is to be done is returned.
Source of the wire's rules: vLLM `distributed/kv_events.py`.
"""

from collections import Counter, deque
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

#: Messages, and their bytes, that may wait while a gap is filled.
MOST_WAITING, MOST_BYTES = 20_000, 64 << 20
#: Seconds between the starts of two replays; doubled each time that one fails, up to the longest.
COOLDOWN_S, LONGEST_COOLDOWN_S = 2.0, 300.0
#: Replays that are begun because the one before had a hole in it.
AGAIN = 2
#: Times that the whole history of one process is read anew because of holes: an engine that failed
#: to encode a batch has one that no replay will ever fill.
REFILLS = 2


class State(Enum):
    """What the stream is doing."""

    WAITING = "waiting"
    """Nothing was heard yet."""
    LIVE = "live"
    REPLAY = "replay"
    """A gap is being filled; what comes meanwhile waits."""
    GAP = "gap"
    """A gap will be filled when the cooldown is over."""


class Apply(NamedTuple):
    """Hand this batch to the index."""

    sequence: int
    payload: bytes


class Clear(NamedTuple):
    """Forget everything that this engine was known to hold."""

    reason: str


class Ask(NamedTuple):
    """Ask for a replay; what it brings is given back with this `round`."""

    start: int
    round: int


Step = Apply | Clear | Ask


class Stream:
    """The stream of one engine process after another, behind one address."""

    def __init__(self, *, replays: bool) -> None:
        """`replays`: there is somewhere to ask for what was missed."""
        self.replays = replays
        self.live = self.applied = -1
        self.epoch = 0
        """Engine processes that were seen to follow another."""
        self.counts: Counter[str] = Counter()
        """`gap`, `replay`, `failed replay`, `overflow` and the like."""
        self.lost = False
        """Something is missing that a replay may still bring."""
        self._missing = False
        """It was passed over, before what was applied since: the whole history alone brings it."""
        self._start = 0
        """Where the last replay began."""
        self._unsure = False
        """A replay is to tell whether the process is the same: it has what was applied last."""
        self._pending: deque[Apply] = deque()
        self._pending_bytes = 0
        self._replaying = False
        self._round = 0
        self._brought = 0
        self._holed = False
        self._again = 0
        self._cut = False
        """The replay had a hole that was passed over."""
        self._refills = 0
        self._fails = 0
        self._cool_until = -1.0
        self._doubted = False
        self._last = 0
        """Digest of what was applied last."""
        self._ahead: dict[int, int] = {}
        """Digests of what replays brought and was not heard live yet, by number."""

    @property
    def state(self) -> State:
        """What it is doing."""
        if self._replaying:
            return State.REPLAY
        if self._pending:
            return State.GAP
        return State.WAITING if self.live < 0 and self.applied < 0 else State.LIVE

    @property
    def blind(self) -> bool:
        """What the index knows of this engine may be wrong or missing now."""
        # Without replay what follows will tell; but of a snapshot's nothing has been heard at all.
        doubted = self._doubted and (self.replays or self.live < 0 <= self.applied)
        return self._replaying or bool(self._pending) or self.lost or doubted

    def opened(self, now: float) -> Iterator[Step]:
        """The subscription stands, or stands again: what was said before may be had by a replay."""
        self._cool_until, self._fails = min(self._cool_until, now), 0
        if not self.replays or self._replaying:
            return
        if self.lost and not self._doubted:
            yield from self.tick(now)
        elif self.applied < 0 or self._doubted:
            yield from self._ask(now)

    def mark(self) -> tuple[int, int, int]:
        """What `resume` needs to go on where this stream is."""
        return self.applied, self._last, self.epoch

    def resume(self, mark: tuple[int, int, int]) -> None:
        """Go on where another one was: what the index holds was true up to there."""
        self.applied, self._last, self.epoch = mark
        self._doubted = True

    def disconnected(self) -> None:
        """The connection broke: unless the next number follows, it is of another process. So may be
        what a replay brings; what waits for it can be had again."""
        self._doubted = True
        if self.replays:
            self._pending.clear()
            self._pending_bytes = 0

    def heard(self, sequence: int, payload: bytes, now: float) -> Iterator[Step]:
        """A live message."""
        doubted, self._doubted = self._doubted, False
        if sequence <= self.live or (doubted and self._is_another(sequence)):
            yield from self.restarted("restart")
        elif doubted:
            self._replaying = self._holed = False  # it may be of the process before
            self._unsure = True
        if self._ahead.pop(sequence, digest := xxh3_64_intdigest(payload)) != digest:
            yield from self.restarted("hidden restart")
        self.live = sequence
        if self._replaying or self._pending:
            yield from self._wait(Apply(sequence, payload), now)
        elif sequence == self.applied + 1 and not (doubted and self.replays and self.applied >= 0):
            self.applied, self._last = sequence, digest
            yield Apply(sequence, payload)
        elif sequence > self.applied:
            self.counts["gap"] += sequence > self.applied + 1
            yield from self._wait(Apply(sequence, payload), now)
            yield from self._cure(now)

    def _is_another(self, sequence: int) -> bool:
        """Whether the first number after a break, or after a snapshot, is of another process."""
        if self.live >= 0:
            return sequence != self.live + 1
        return sequence <= self.applied and sequence not in self._ahead

    def restarted(self, reason: str) -> Iterator[Step]:
        """It is another process now, which begins at 0 and holds nothing."""
        self.epoch += 1
        self._refills = 0
        self.counts[reason] += 1
        self._reset()
        yield Clear(reason)

    def replayed(self, round_: int, sequence: int, payload: bytes) -> Iterator[Step]:
        """A message of a replay; those of one that was given up are dropped."""
        if not self._replaying or round_ != self._round or self._holed:
            return
        first, self._brought = not self._brought, self._brought + 1
        digest = xxh3_64_intdigest(payload)
        if sequence == self.applied and digest != self._last:
            yield from self._follow_another()
            return
        unsure, self._unsure = self._unsure, False
        if sequence <= self.applied:
            return
        if sequence > self.applied + 1 or (unsure and self.applied >= 0):
            if not first and self._again < AGAIN:
                self._holed = True
                return
            self._cut = self._cut or not first
            yield from self._lose("history lost" if first else "hole in a replay", sequence)
        self.applied, self._last = sequence, digest
        if sequence > self.live and len(self._ahead) < MOST_WAITING:
            self._ahead[sequence] = digest
        yield Apply(sequence, payload)

    def _follow_another(self) -> Iterator[Step]:
        """The replay is of another process than what came before: what waits is of it too."""
        live, waiting = self.live, list(self._pending)
        yield from self.restarted("hidden restart")
        self.live = live
        self._pending.extend(waiting)
        self._pending_bytes = sum(len(one.payload) for one in waiting)
        self._round += 1
        self._replaying, self._brought, self._holed = True, 0, False
        self._start = 0
        yield Ask(0, self._round)

    def replay_ended(self, round_: int, now: float) -> Iterator[Step]:
        """The replay is complete, as far as the engine is concerned."""
        if not self._replaying or round_ != self._round:
            return
        if not self._brought and self.applied >= 0:  # not even what it has said before
            yield from self._follow_another()
            return
        self._replaying = False
        self._fails = 0
        self._missing = self.lost = self._missing and self._start > 0
        yield from self._drain()
        if self._holed or self._pending:
            if self._again < AGAIN:
                self._again += 1
                yield from self._ask(now)
                return
            self._cut = True
            yield from self._give_up("hole in a replay")
        self._again = 0
        if self._cut:
            self._cut = False
            self._missing = self.lost = self._refills < REFILLS
            self._refills += 1

    def replay_failed(self, round_: int, now: float) -> Iterator[Step]:
        """The replay broke off, or was never answered."""
        if not self._replaying or round_ != self._round:
            return
        self.counts["failed replay"] += 1
        self._replaying = False
        self._doubted = self._doubted or self._unsure
        self._cool(now)
        if self._pending:
            yield from self._give_up("failed replay")
        self.lost = True

    def tick(self, now: float) -> Iterator[Step]:
        """Time has passed: what had to wait for the cooldown may begin."""
        if self._replaying or now < self._cool_until or not self.replays:
            return
        if self._pending or self._doubted:
            yield from self._ask(now)
        elif self.lost:
            live = self.live
            yield Clear("read anew")
            self._reset()
            self.live = live
            yield from self._ask(now)

    def _wait(self, message: Apply, now: float) -> Iterator[Step]:
        self._pending.append(message)
        self._pending_bytes += len(message.payload)
        if len(self._pending) > MOST_WAITING or self._pending_bytes > MOST_BYTES:
            self._replaying = False
            self._cool(now)
            self.counts["overflow"] += 1
            yield from self._give_up("gap in an overflow")
            self.lost = self.replays

    def _cool(self, now: float) -> None:
        """A replay failed: the next one is longer in coming."""
        self._fails = min(self._fails + 1, 60)
        self._cool_until = now + min(LONGEST_COOLDOWN_S, COOLDOWN_S * 2.0**self._fails)

    def _cure(self, now: float) -> Iterator[Step]:
        """Fill the gap before what waits: now, soon, or never."""
        if not self.replays:
            yield from self._give_up("gap without replay")
        elif now >= self._cool_until:
            yield from self._ask(now)

    def _ask(self, now: float) -> Iterator[Step]:
        self.counts["replay"] += 1
        self._replaying = True
        self._unsure, self._doubted = self._unsure or self._doubted, False
        self._round += 1
        self._brought, self._holed = 0, False
        self._cool_until = max(self._cool_until, now + COOLDOWN_S)
        self._start = max(0, self.applied)
        yield Ask(self._start, self._round)

    def _drain(self) -> Iterator[Step]:
        """Hand on what waits, up to the next gap."""
        while self._pending and self._pending[0].sequence <= self.applied + 1:
            message = self._pending.popleft()
            self._pending_bytes -= len(message.payload)
            if message.sequence > self.applied:
                self.applied, self._last = message.sequence, xxh3_64_intdigest(message.payload)
                yield message

    def _give_up(self, reason: str) -> Iterator[Step]:
        """What is missing stays so: begin anew with what there is, however often."""
        yield from self._drain()
        while self._pending:
            self._missing = True
            yield from self._lose(reason, self._pending[0].sequence)
            yield from self._drain()

    def _lose(self, reason: str, following: int) -> Iterator[Step]:
        """Everything before that number is lost."""
        self.counts[reason] += 1
        known = self.applied >= 0
        self.applied, self._last = following - 1, 0
        if known:
            yield Clear(reason)

    def _reset(self) -> None:
        self.live = self.applied = -1
        self._pending.clear()
        self._pending_bytes = 0
        self._ahead.clear()
        self._replaying = self._holed = self._cut = self.lost = self._missing = False
        self._again = 0

    def __repr__(self) -> str:
        return f"<Stream {self.state.value} live={self.live} applied={self.applied}>"
