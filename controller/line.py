"""Who is heard over one socket: most often one engine, or a fleet of them that dials in.

An engine that is connected to is known by its address. Over a socket of ours that several dial in
to, each is known by its topic, `kv@WORKER@MODEL`, where WORKER is its name, its address or its host
(as llm-d has it: `kv@POD-IP@MODEL`). A topic of nobody is counted and dropped, and so is one that
two could be meant by.
"""

from collections.abc import Iterable, Iterator

from controller.source import Source


def binds(endpoint: str) -> bool:
    """Whether engines dial in there: the host is any of ours, and not one of theirs."""
    host = endpoint.removeprefix("tcp://").rpartition(":")[0]
    return host in ("*", "0.0.0.0", "[::]", "::")  # noqa: S104 - as the operator has it


class Line:
    """The sources behind one socket. Pure."""

    def __init__(self) -> None:
        self.replays: dict[Source, str | None] = {}
        """Where each answers for what was missed."""
        self.shared = False
        """There were several at once: from then on topics tell them apart."""
        self._names: dict[str, set[Source]] = {}

    def add(self, source: Source, replay: str | None, names: Iterable[str]) -> None:
        """Another engine; in its topic it goes by one of these names."""
        self.replays[source] = replay
        self.shared = self.shared or len(self.replays) > 1
        for name in names:
            self._names.setdefault(name, set()).add(source)

    def remove(self, source: Source) -> bool:
        """That one is not listened to any more; return whether it was the last."""
        self.replays.pop(source, None)
        for name, named in list(self._names.items()):
            named.discard(source)
            if not named:
                del self._names[name]
        return not self.replays

    def of(self, topic: bytes) -> Source | None:
        """Whose message it is; None if nobody's, which is counted with all of them."""
        if not self.shared:
            return next(iter(self.replays), None)
        parts = topic.decode(errors="replace").split("@")
        found = self._names.get(parts[1], set()) if len(parts) >= 3 and parts[0] == "kv" else set()
        if len(found) == 1:
            return next(iter(found))
        for source in self.replays:
            source.refused["topic of nobody"] += 1
        return None

    def __iter__(self) -> Iterator[Source]:
        """Everyone who is heard over it."""
        return iter(list(self.replays))
