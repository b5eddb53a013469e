"""One engine's event stream as a state machine: no event twice or out of order, no gap unnoticed.

Engines number their batches from 0, and drop batches if a subscriber is too slow. A replay brings
missed batches as long as the engine still buffers them. Two numbers keep track: `live`, the last
number heard live, and `applied`, the last one handed on to the index.

1. If a live number does not rise, there is a new engine process: everything it held is gone.
2. The next number is handed on; numbers that were handed on before are dropped.
3. A higher number shows a gap: the batch waits, and the missing ones are requested. Replays start
   at least a cooldown apart, because an engine publishes nothing while it replays.
4. What a replay cannot bring any more is lost: everything is cleared, and the index is rebuilt from
   there on. A hole in a replay is requested again a few times, and then passed over.
5. A replay starts with the last message that was handed on. If that message differs now, it comes
   from another process. The same goes for a live message that a replay has brought before.
6. After a failed replay, the whole history is requested again, at growing intervals.

It has no sockets and no clock: times are arguments, in seconds of any clock, and the steps to take
are returned. Source of the protocol: vLLM `distributed/kv_events.py`.
"""

from collections import Counter, deque
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

#: Most messages, and bytes of messages, that wait while a gap is filled.
MAX_PENDING_MESSAGES, MAX_PENDING_BYTES = 20_000, 64 << 20
#: Seconds between the starts of two replays; doubled each time that one fails, up to the longest.
REPLAY_COOLDOWN_S, MAX_REPLAY_COOLDOWN_S = 2.0, 300.0
#: How often a replay is repeated because it had a hole.
MAX_HOLE_RETRIES = 2
#: How often the whole history of one process is read again because of holes. If an engine failed to
#: encode a batch, no replay will ever fill that hole.
MAX_REFILLS = 2


class StreamPhase(Enum):
    """What the stream is doing."""

    WAITING = "waiting"
    """Nothing has been heard yet."""
    LIVE = "live"
    REPLAY = "replay"
    """A replay is under way; live messages wait."""
    GAP = "gap"
    """There is a gap; its replay waits for the cooldown."""


class ApplyBatch(NamedTuple):
    """Hand this batch to the index."""

    sequence: int
    payload: bytes


class ClearEngine(NamedTuple):
    """Forget everything that this engine was known to hold."""

    reason: str


class ReplayRequest(NamedTuple):
    """Ask for a replay from `start`; pass back what it brings with this `round`."""

    start: int
    round: int


Step = ApplyBatch | ClearEngine | ReplayRequest


class Stream:
    """The stream from one address, behind which one engine process may follow another."""

    def __init__(self, *, replays: bool) -> None:
        """`replays`: whether the engine has a replay endpoint."""
        self.replays = replays
        self.live = self.applied = -1
        self.epoch = 0
        """Number of restarts of the engine that were noticed."""
        self.counts: Counter[str] = Counter()
        """How often what happened: `gap`, `replay`, `failed replay`, `overflow` and the like."""
        self.lost = False
        """Something is missing that a replay may still bring."""
        self._missing = False
        """Batches were passed over, and later ones applied: only a replay of the whole history can
        bring them."""
        self._start = 0
        """Number from which the last replay was requested."""
        self._unsure = False
        """The process may be another one; the replay shows it by the message applied last."""
        self._pending: deque[ApplyBatch] = deque()
        self._pending_bytes = 0
        self._replaying = False
        self._round = 0
        self._brought = 0
        self._holed = False
        self._again = 0
        self._cut = False
        """A hole in the replay was passed over."""
        self._refills = 0
        self._fails = 0
        self._cool_until = -1.0
        self.doubted = False
        """The engine may be another process than the one that was heard last."""
        self._last = 0
        """Digest of the message applied last."""
        self._ahead: dict[int, int] = {}
        """Digests of replayed messages that were not heard live yet, by number."""

    @property
    def state(self) -> StreamPhase:
        """What the stream is doing."""
        if self._replaying:
            return StreamPhase.REPLAY
        if self._pending:
            return StreamPhase.GAP
        return StreamPhase.WAITING if self.live < 0 and self.applied < 0 else StreamPhase.LIVE

    @property
    def blind(self) -> bool:
        """True if what the index has for this engine may be wrong or incomplete now."""
        # Without replay, the next live message resolves a doubt, so the engine is still believed;
        # but not right after a snapshot was restored, when nothing has been heard at all.
        doubted = self.doubted and (self.replays or self.live < 0 <= self.applied)
        return self._replaying or bool(self._pending) or self.lost or doubted

    def opened(self, now: float) -> Iterator[Step]:
        """Handle a connected or reconnected subscription: ask for what was published before."""
        self._cool_until, self._fails = min(self._cool_until, now), 0
        if not self.replays or self._replaying:
            return
        if self.lost and not self.doubted:
            yield from self.tick(now)
        elif self.applied < 0 or self.doubted:
            yield from self._ask(now)

    def mark(self) -> tuple[int, int, int]:
        """Return what `resume` needs to continue where this stream is."""
        return self.applied, self._last, self.epoch

    def resume(self, mark: tuple[int, int, int]) -> None:
        """Continue where another stream was: the index is right up to that message."""
        self.applied, self._last, self.epoch = mark
        self.doubted = True

    def disconnected(self) -> None:
        """Handle a broken connection: the engine may be another process when it is back.

        It is, unless the next number follows. A replay may come from another process, too, so
        waiting messages are dropped; a later replay brings them again.
        """
        self.doubted = True
        if self.replays:
            self._pending.clear()
            self._pending_bytes = 0

    def heard(self, sequence: int, payload: bytes, now: float) -> Iterator[Step]:
        """Handle a live message."""
        doubted, self.doubted = self.doubted, False
        if sequence <= self.live or (doubted and self._is_another(sequence)):
            yield from self.restarted("restart")
        elif doubted:
            self._replaying = self._holed = False  # the replay may be of the previous process
            self._unsure = True
        if self._ahead.pop(sequence, digest := xxh3_64_intdigest(payload)) != digest:
            yield from self.restarted("hidden restart")
        self.live = sequence
        if self._replaying or self._pending:
            yield from self._wait(ApplyBatch(sequence, payload), now)
        elif sequence == self.applied + 1 and not (doubted and self.replays and self.applied >= 0):
            self.applied, self._last = sequence, digest
            yield ApplyBatch(sequence, payload)
        elif sequence > self.applied:
            self.counts["gap"] += sequence > self.applied + 1
            yield from self._wait(ApplyBatch(sequence, payload), now)
            yield from self._cure(now)

    def _is_another(self, sequence: int) -> bool:
        """Return true if the first number after a break or a restore is of another process."""
        if self.live >= 0:
            return sequence != self.live + 1
        return sequence <= self.applied and sequence not in self._ahead

    def restarted(self, reason: str) -> Iterator[Step]:
        """Start over with a new engine process, which counts from 0 and holds nothing."""
        self.epoch += 1
        self._refills = 0
        self.counts[reason] += 1
        self._reset()
        yield ClearEngine(reason)

    def replayed(self, round_: int, sequence: int, payload: bytes) -> Iterator[Step]:
        """Handle a message of a replay; those of an abandoned replay are dropped."""
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
            if not first and self._again < MAX_HOLE_RETRIES:
                self._holed = True
                return
            self._cut = self._cut or not first
            yield from self._lose("history lost" if first else "hole in a replay", sequence)
        self.applied, self._last = sequence, digest
        if sequence > self.live and len(self._ahead) < MAX_PENDING_MESSAGES:
            self._ahead[sequence] = digest
        yield ApplyBatch(sequence, payload)

    def _follow_another(self) -> Iterator[Step]:
        """Start over: the replay, and with it what waits, is of a new process."""
        live, waiting = self.live, list(self._pending)
        yield from self.restarted("hidden restart")
        self.live = live
        self._pending.extend(waiting)
        self._pending_bytes = sum(len(message.payload) for message in waiting)
        self._round += 1
        self._replaying, self._brought, self._holed = True, 0, False
        self._start = 0
        yield ReplayRequest(0, self._round)

    def replay_ended(self, round_: int, now: float) -> Iterator[Step]:
        """Handle the end of a replay, as the engine marks it."""
        if not self._replaying or round_ != self._round:
            return
        if not self._brought and self.applied >= 0:  # not even the message applied last
            yield from self._follow_another()
            return
        self._replaying = False
        self._fails = 0
        self._missing = self.lost = self._missing and self._start > 0
        yield from self._drain()
        if self._holed or self._pending:
            if self._again < MAX_HOLE_RETRIES:
                self._again += 1
                yield from self._ask(now)
                return
            self._cut = True
            yield from self._give_up("hole in a replay")
        self._again = 0
        if self._cut:
            self._cut = False
            self._missing = self.lost = self._refills < MAX_REFILLS
            self._refills += 1

    def replay_failed(self, round_: int, now: float) -> Iterator[Step]:
        """Handle a replay that broke off or was never answered."""
        if not self._replaying or round_ != self._round:
            return
        self.counts["failed replay"] += 1
        self._replaying = False
        self.doubted = self.doubted or self._unsure
        self._cool(now)
        if self._pending:
            yield from self._give_up("failed replay")
        self.lost = True

    def tick(self, now: float) -> Iterator[Step]:
        """Start replays that had to wait for the cooldown."""
        if self._replaying or now < self._cool_until or not self.replays:
            return
        if self._pending or self.doubted:
            yield from self._ask(now)
        elif self.lost:
            live = self.live
            yield ClearEngine("read anew")
            self._reset()
            self.live = live
            yield from self._ask(now)

    def _wait(self, message: ApplyBatch, now: float) -> Iterator[Step]:
        self._pending.append(message)
        self._pending_bytes += len(message.payload)
        if len(self._pending) > MAX_PENDING_MESSAGES or self._pending_bytes > MAX_PENDING_BYTES:
            self._replaying = False
            self._cool(now)
            self.counts["overflow"] += 1
            yield from self._give_up("gap in an overflow")
            self.lost = self.replays

    def _cool(self, now: float) -> None:
        """Double the cooldown after a failed replay."""
        self._fails = min(self._fails + 1, 60)
        self._cool_until = now + min(MAX_REPLAY_COOLDOWN_S, REPLAY_COOLDOWN_S * 2.0**self._fails)

    def _cure(self, now: float) -> Iterator[Step]:
        """Fill the gap before the waiting messages: now, after the cooldown, or never."""
        if not self.replays:
            yield from self._give_up("gap without replay")
        elif now >= self._cool_until:
            yield from self._ask(now)

    def _ask(self, now: float) -> Iterator[Step]:
        self.counts["replay"] += 1
        self._replaying = True
        self._unsure, self.doubted = self._unsure or self.doubted, False
        self._round += 1
        self._brought, self._holed = 0, False
        self._cool_until = max(self._cool_until, now + REPLAY_COOLDOWN_S)
        self._start = max(0, self.applied)
        yield ReplayRequest(self._start, self._round)

    def _drain(self) -> Iterator[Step]:
        """Hand on waiting messages, up to the next gap."""
        while self._pending and self._pending[0].sequence <= self.applied + 1:
            message = self._pending.popleft()
            self._pending_bytes -= len(message.payload)
            if message.sequence > self.applied:
                self.applied, self._last = message.sequence, xxh3_64_intdigest(message.payload)
                yield message

    def _give_up(self, reason: str) -> Iterator[Step]:
        """Give up what is missing: start over after each gap in the waiting messages."""
        yield from self._drain()
        while self._pending:
            self._missing = True
            yield from self._lose(reason, self._pending[0].sequence)
            yield from self._drain()

    def _lose(self, reason: str, following: int) -> Iterator[Step]:
        """Give up everything before the number `following`."""
        self.counts[reason] += 1
        known = self.applied >= 0
        self.applied, self._last = following - 1, 0
        if known:
            yield ClearEngine(reason)

    def _reset(self) -> None:
        self.live = self.applied = -1
        self._pending.clear()
        self._pending_bytes = 0
        self._ahead.clear()
        self._replaying = self._holed = self._cut = self.lost = self._missing = False
        self._again = 0
