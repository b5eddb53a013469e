"""The engines heard over one socket: usually one, or a fleet of engines that connect to it.

If the router connects to an engine, the address identifies it. If several engines connect to one
bound socket, topics tell them apart: `kv@WORKER@MODEL`, where WORKER is the worker's name, its
address or its host (llm-d uses `kv@POD-IP@MODEL`). A message whose topic fits no worker, or more
than one, is counted and dropped.
"""

from collections.abc import Iterable, Iterator

from controller.events.source import EventSource


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
