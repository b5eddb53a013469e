"""One engine's events on their way into the index: numbers in order, bytes to blocks, counts."""

from collections import Counter
from collections.abc import Iterable

from controller.agreement import First, first_of
from controller.events import Event, Refused, Removed, Stored, Tier, decode
from controller.index import Index
from controller.stream import Apply, Ask, Clear, Step, Stream

#: Why something was refused that nobody here foresaw.
UNEXPECTED = "unexpected"

#: What `Stream.mark` says, and the group of layers whose blocks count.
Mark = tuple[int, int, int, int | None]


class Source:
    """One engine: a worker, or one data-parallel rank of it. Pure; times in seconds."""

    def __init__(self, index: Index, worker: str, rank: int = 0, *, replays: bool = False) -> None:
        self.worker = worker
        self.rank = rank
        self.name = worker if not rank else f"{worker}\0{rank}"
        """As the index knows it."""
        self.stream = Stream(replays=replays)
        self.connected = False
        self.last_event: float | None = None
        """When the last message came."""
        self.still_since: float | None = None
        """When the last message came, or else the connection stood first; None if it never did."""
        self.told = 0.0
        """When the last batch was made, by the engine's clock, in seconds since the epoch; also of
        one that a replay brought. 0 if none was."""
        self.events = self.blocks = 0
        """That were applied; blocks stored and removed."""
        self.refused: Counter[str] = Counter()
        """Messages and events that could not be used, by reason."""
        self.group: int | None = None
        """The group of layers whose blocks count; None until one has told."""
        self.first: First | None = None
        """A first block that it told of, of nothing but tokens."""
        self._index = index

    def opened(self, now: float) -> list[Ask]:
        """The connection stands."""
        self.connected = True
        if self.still_since is None:
            self.still_since = now
        return self._take(self.stream.opened(now))

    def disconnected(self) -> None:
        """The connection broke."""
        self.connected = False
        self.stream.disconnected()

    def doubted(self) -> None:
        """Its connection may have broken, or another engine's."""
        self.stream.disconnected()

    def heard(self, sequence: int, payload: bytes, now: float) -> list[Ask]:
        """A live message; returns what must be asked for."""
        self.last_event = self.still_since = now
        return self._take(self.stream.heard(sequence, payload, now))

    def replayed(self, round_: int, sequence: int, payload: bytes) -> list[Ask]:
        """A message of a replay."""
        return self._take(self.stream.replayed(round_, sequence, payload))

    def replay_ended(self, round_: int, now: float) -> list[Ask]:
        """A replay is complete."""
        return self._take(self.stream.replay_ended(round_, now))

    def replay_failed(self, round_: int, now: float) -> list[Ask]:
        """A replay broke off."""
        return self._take(self.stream.replay_failed(round_, now))

    def tick(self, now: float) -> list[Ask]:
        """Time has passed; nobody is asked who is not there."""
        return self._take(self.stream.tick(now)) if self.connected else []

    def restarted(self) -> None:
        """The engine was most likely restarted, so its health says: a replay will tell, or not."""
        if self.stream.replays:
            self.doubted()
        else:
            self._take(self.stream.restarted("worker was down"))

    def mark(self) -> Mark:
        """What `resume` needs to go on where this source is."""
        return *self.stream.mark(), self.group

    def resume(self, mark: Mark) -> None:
        """Go on where another one was, whose blocks the index holds."""
        *where, self.group = mark
        self.stream.resume((where[0], where[1], where[2]))

    def push(self, payload: bytes, now: float) -> None:
        """Events without a number, in the order in which they come."""
        self.connected = True
        self.last_event = self.still_since = now
        self._apply(payload)

    @property
    def doubt(self) -> str:
        """Why what the index knows of it may be wrong; empty if it is not."""
        if not self.connected:
            return "not connected"
        if self.stream.blind:
            return "gap"
        return ""

    def _take(self, steps: Iterable[Step]) -> list[Ask]:
        asks = []
        for step in steps:
            if isinstance(step, Apply):
                self._apply(step.payload)
            elif isinstance(step, Clear):
                self._index.forget(self.name)
                self.group = self.first = None
            else:
                asks.append(step)
        return asks

    def _apply(self, payload: bytes) -> None:
        try:
            batch = decode(payload)
        except Refused as refused:
            self.refused[str(refused)] += 1
            return
        if batch.ignored:
            self.refused.update(batch.ignored)
        self.told = batch.time or self.told
        for event in batch.events:
            try:
                self._use(event)
            except Exception:  # noqa: BLE001 - a fault of ours, by one event: those after it count
                self.refused[UNEXPECTED] += 1
        self.events += len(batch.events)

    def _use(self, event: Event) -> None:
        index, name = self._index, self.name
        if isinstance(event, Stored):
            if self._counts(event):
                index.store(name, event)
                self.blocks += len(event.hashes)
                self.first = first_of(event) or self.first
        elif isinstance(event, Removed):
            if event.group is None or self.group is None or event.group == self.group:
                index.remove(name, event)
                self.blocks += len(event.hashes)
        else:
            index.clear(name, Tier.GPU)

    def _counts(self, event: Stored) -> bool:
        """Whether these blocks extend a prefix: those of one group that attends to everything.

        Engines with several kinds of layers keep blocks for each, under the same names (vLLM
        `v1/core/block_pool.py`): sliding windows and states are not to be mixed up with it.
        """
        if event.whole is False:
            self.refused["other attention"] += 1
            return False
        if event.group is not None:
            if self.group is None:
                self.group = event.group
            if event.group != self.group:
                self.refused["another group"] += 1
                return False
        return True
