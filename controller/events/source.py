"""One engine's events on their way into the index: ordered, decoded, filtered and counted.

A message may release thousands that waited for it. Only the first step is taken at once; while
there are `late` ones, `catch_up` is to be called again and again, with other work in between.

`Lag` is how far the index is behind an engine: the age of what waits to be applied. Messages wait
in their socket, and nothing tells since when. But engines stamp each batch. While something waits
all the time, the stamps of the batches that are applied go on as fast as our own clock, unless
batches come faster than they are applied: what our clock gains is what we are behind. Only
differences on the same clock count, so it does not matter how far two clocks are apart. When
nothing waits, nothing is behind, and counting starts anew: then a clock that was set does not
matter either, nor one that drifts.

`SharedSocket` has the engines heard over one socket: usually one, or a fleet of engines that
connect to it. If the router connects to an engine, the address identifies it. If several engines
connect to one bound socket, topics tell them apart: `kv@WORKER@MODEL`, where WORKER is the worker's
name, its address or its host (llm-d uses `kv@POD-IP@MODEL`). A message whose topic fits no worker,
or more than one, is counted and dropped.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator

from controller.events.decode import BadEvent, decode
from controller.events.stream import ApplyBatch, ClearEngine, ReplayRequest, Step, Stream
from controller.index.block_events import (
    BlockRemoved,
    BlockStored,
    Event,
    FirstBlock,
    Mark,
    Tier,
    first_block,
)
from controller.index.index import Index

#: Seconds behind which an index is not believed. Answered prompts count where they were sent for a
#: second (`unconfirmed` of `kvaware`), as their events may be on their way; twice that is too late.
MAX_LAG_S = 2.0


class Lag:
    """How far one engine's events are behind. Pure; times in seconds."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """How long the batch that was applied last had waited; 0 if nothing waits now."""
        self._since: float | None = None
        """When the first message came since nothing waited; None if nothing waits."""
        self._ahead: float | None = None
        """What our clock showed more than the engine's for a batch that had just come."""

    @property
    def late(self) -> bool:
        """True if it is too far behind to be believed."""
        return self.seconds > MAX_LAG_S

    def came(self, now: float) -> bool:
        """Note that a message was there at `now`; return whether it is the first to wait."""
        first = self._since is None
        if first:
            self._since = now
        return first

    def applied(self, now: float, made: float, *, first: bool) -> None:
        """Note that a batch was applied that the engine stamped `made`; 0 if it stamps none.

        `first`: it is the one for which `came` returned True, so it had just come then. Without a
        stamp, or if no such batch was ever seen, it may have waited since then.
        """
        if self._since is None:
            return
        self.seconds = now - self._since
        if not made:
            return
        if first:
            self._ahead = self._since - made
        if self._ahead is not None:
            self._ahead = min(self._ahead, now - made)
            self.seconds = min(self.seconds, now - made - self._ahead)

    def caught_up(self) -> None:
        """Note that nothing waits."""
        self._since, self.seconds = None, 0.0


#: Reason for refusing an event that caused an unexpected exception.
UNEXPECTED = "unexpected"


class EventSource:
    """One engine: a worker, or one data-parallel rank of it. Pure; times in seconds."""

    def __init__(self, index: Index, worker: str, rank: int = 0, *, replays: bool = False) -> None:
        self.worker = worker
        self.rank = rank
        self.name = worker if not rank else f"{worker}\0{rank}"
        """Its name in the index."""
        self.stream = Stream(replays=replays)
        self.connected = False
        self.last_event: float | None = None
        """When the last message came."""
        self.still_since: float | None = None
        """When the last message came or, before any did, when it first connected; None if never."""
        self.batch_time = 0.0
        """Time of the last batch, live or replayed, by the engine's clock, in seconds since the
        epoch; 0 if there was none."""
        self.lag = Lag()
        """How far what was applied is behind what was heard."""
        self.events = self.blocks = 0
        """Number of events applied, and of blocks that they stored or removed."""
        self.refused: Counter[str] = Counter()
        """Messages and events that could not be used, by reason."""
        self.group: int | None = None
        """The group of layers whose blocks count; None until an event names one."""
        self.first: FirstBlock | None = None
        """The latest announced first block of a sequence whose name covers only tokens."""
        self.late: deque[ApplyBatch | ClearEngine] = deque()
        """Steps of the stream that were not taken yet; what follows is taken after them."""
        self._index = index
        self._met = 0
        """The stream's epoch when health checks last suggested a restart."""

    def opened(self, now: float) -> list[ReplayRequest]:
        """Handle a connection that was made."""
        self.connected = True
        if self.still_since is None:
            self.still_since = now
        return self._take(self.stream.opened(now))

    def disconnected(self) -> None:
        """Handle a broken connection."""
        self.connected = False
        self.stream.disconnected()

    def doubted(self) -> None:
        """Handle a broken connection that may be this engine's or another one's."""
        self.stream.disconnected()

    def heard(
        self, sequence: int, payload: bytes, now: float, came: float | None = None
    ) -> list[ReplayRequest]:
        """Handle a live message; return the replays to request.

        `came` is when it was taken from the socket, if that was earlier than `now`.
        """
        self.last_event = self.still_since = now
        first, before = self.lag.came(now if came is None else came), self.batch_time
        requests = self._take(self.stream.heard(sequence, payload, now))
        if self.stream.applied == sequence and not self.late:
            self.lag.applied(now, self.batch_time, first=first and self.batch_time != before)
        return requests

    def replayed(self, round_: int, sequence: int, payload: bytes) -> list[ReplayRequest]:
        """Handle a message of a replay."""
        return self._take(self.stream.replayed(round_, sequence, payload))

    def replay_ended(self, round_: int, now: float) -> list[ReplayRequest]:
        """Handle the end of a replay."""
        return self._take(self.stream.replay_ended(round_, now))

    def replay_failed(self, round_: int, now: float) -> list[ReplayRequest]:
        """Handle a replay that broke off."""
        return self._take(self.stream.replay_failed(round_, now))

    def tick(self, now: float) -> list[ReplayRequest]:
        """Start replays that are due, if the engine is connected."""
        return self._take(self.stream.tick(now)) if self.connected else []

    def restarted(self) -> None:
        """Handle a probable restart, as health checks suggest; a replay, if possible, verifies it.

        Without replay, everything it held is forgotten; not if its stream has noticed the restart
        before, as what the new process has announced since would never be announced again.
        """
        if self.stream.replays:
            self.doubted()
        elif self.stream.doubted or self.stream.epoch == self._met:
            self._take(self.stream.restarted("worker was down"))
        self._met = self.stream.epoch

    def mark(self) -> Mark:
        """Return what `resume` needs to continue where this source is, after all late steps."""
        while self.late:
            self.catch_up()
        return *self.stream.mark(), self.group

    def resume(self, mark: Mark) -> None:
        """Continue where another source was; its blocks are in the index."""
        *where, self.group = mark
        self.stream.resume((where[0], where[1], where[2]))
        self._met = self.stream.epoch

    def push(self, payload: bytes, now: float) -> None:
        """Apply a batch without a sequence number, in order of arrival."""
        self.connected = True
        self.last_event = self.still_since = now
        self._apply(payload)

    @property
    def doubt(self) -> str:
        """Why what the index has for it may be wrong; empty if there is no reason."""
        if not self.connected:
            return "not connected"
        if self.stream.blind or self.late:
            return "gap"
        return "late" if self.lag.late else ""

    def catch_up(self) -> None:
        """Take the next of the late steps, of which there must be one."""
        self._do(self.late.popleft())

    def _take(self, steps: Iterable[Step]) -> list[ReplayRequest]:
        requests, busy = [], bool(self.late)
        for step in steps:
            if isinstance(step, ReplayRequest):
                requests.append(step)
            elif busy:
                self.late.append(step)
            else:
                self._do(step)
                busy = isinstance(step, ApplyBatch)  # what is cleared is often heard anew at once
        return requests

    def _do(self, step: ApplyBatch | ClearEngine) -> None:
        if isinstance(step, ApplyBatch):
            self._apply(step.payload)
        else:
            self._index.forget(self.name)
            self.group = self.first = None

    def _apply(self, payload: bytes) -> None:
        try:
            batch = decode(payload)
        except BadEvent as refused:
            self.refused[str(refused)] += 1
            return
        if batch.ignored:
            self.refused.update(batch.ignored)
        self.batch_time = batch.time or self.batch_time
        for event in batch.events:
            try:
                self._use(event)
            except Exception:  # noqa: BLE001 - a bug here; the events after this one still count
                self.refused[UNEXPECTED] += 1
        self.events += len(batch.events)

    def _use(self, event: Event) -> None:
        index, name = self._index, self.name
        if isinstance(event, BlockStored):
            if self._counts(event):
                index.store(name, event)
                self.blocks += len(event.hashes)
                self.first = first_block(event) or self.first
        elif isinstance(event, BlockRemoved):
            if event.group is None or self.group is None or event.group == self.group:
                index.remove(name, event)
                self.blocks += len(event.hashes)
        else:
            index.clear(name, Tier.GPU)

    def _counts(self, event: BlockStored) -> bool:
        """Return true if these blocks extend a prefix, as one group with full attention does.

        Engines with several kinds of layers keep blocks for each kind under the same names (vLLM
        `v1/core/block_pool.py`). Blocks of sliding windows and states must not be mixed in.
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


def binds(endpoint: str) -> bool:
    """Return true if engines connect to this address, which we bind: its host is a wildcard."""
    host = endpoint.removeprefix("tcp://").rpartition(":")[0]
    return host in ("*", "0.0.0.0", "[::]", "::")  # noqa: S104 - as the operator configured it


class SharedSocket:
    """The sources behind one socket. Pure."""

    def __init__(self) -> None:
        self.replays: dict[EventSource, str | None] = {}
        """The sources, each with its replay endpoint, if it has one."""
        self.several = False
        """Whether there have ever been several sources at once; then topics tell them apart."""
        self._names: dict[str, set[EventSource]] = {}
        self._behind: set[EventSource] = set()
        """The sources of which messages came since the socket was empty."""

    def add(self, source: EventSource, replay: str | None, names: Iterable[str]) -> None:
        """Add an engine, whose topic contains one of `names`."""
        self.replays[source] = replay
        self.several = self.several or len(self.replays) > 1
        for name in names:
            self._names.setdefault(name, set()).add(source)

    def remove(self, source: EventSource) -> bool:
        """Remove an engine; return whether it was the last one."""
        self.replays.pop(source, None)
        self._behind.discard(source)
        for name, named in list(self._names.items()):
            named.discard(source)
            if not named:
                del self._names[name]
        return not self.replays

    def of(self, topic: bytes) -> EventSource | None:
        """Return the source of a message; None if that is unclear, counted with every source."""
        source = self._of(topic)
        if source is not None:
            self._behind.add(source)
        return source

    def waits(self, now: float) -> None:
        """Note that messages of any source may wait in the socket from `now` on."""
        for source in self.replays:
            source.lag.came(now)
        self._behind.update(self.replays)

    def caught_up(self) -> None:
        """Note that the socket is empty."""
        for source in self._behind:
            source.lag.caught_up()
        self._behind.clear()

    def _of(self, topic: bytes) -> EventSource | None:
        if not self.several:
            return next(iter(self.replays), None)
        parts = topic.decode(errors="replace").split("@")
        named = self._names.get(parts[1], set()) if len(parts) >= 3 and parts[0] == "kv" else set()
        if len(named) == 1:
            return next(iter(named))
        for source in self.replays:
            source.refused["topic of nobody"] += 1
        return None

    def __iter__(self) -> Iterator[EventSource]:
        """Iterate over the sources that are heard over this socket."""
        return iter(list(self.replays))
