"""What kinds of chunks a Redis holds, according to its keys."""

import re
from typing import NamedTuple

#: Patterns of the keys of LMCache's server (`chunks`), and of LMCache in the engine's own process
#: (`engine_chunks`).
SERVERS = re.compile(
    rb"(?P<model>.+)@(?P<gpus>[0-9a-f]{2})[0-9a-f]{6}@(?P<group>[0-9a-f]+)@(?P<digest>[0-9a-f]{64})"
    rb"(@[^@]+)?"
)
ENGINES = re.compile(
    rb"(?P<model>.+)@(?P<gpus>\d{1,4})@(?P<gpu>\d+)@(?P<hash>-?[0-9a-f]+)"
    rb"@(?P<dtype>[a-z0-9_]+?)(?P<part>metadata|kv_bytes|)(@.*)?"
)


class Kind(NamedTuple):
    """A kind of chunks: those that share a naming scheme."""

    model: str
    gpus: int
    """GPUs per worker."""
    dtype: str = ""
    """The KV cache's dtype, as in the keys of LMCache in the engine; empty for its server's
    keys."""

    def __str__(self) -> str:
        """Describe it, for messages."""
        model = re.sub(r"[^ -~]", "?", self.model)[:100]
        how = f"{self.dtype}, named in the engine" if self.dtype else "named by the server"
        return f"{model} with {self.gpus} GPUs, {how}"


def kind_of(key: bytes) -> Kind | None:
    """Return the kind of chunk that a key is of; None if it is not one of LMCache's."""
    found = SERVERS.fullmatch(key)
    if found is not None:
        return Kind(_text(found["model"]), int(found["gpus"], 16))
    found = ENGINES.fullmatch(key)
    if found is None:
        return None
    return Kind(_text(found["model"]), int(found["gpus"]), _text(found["dtype"]))


def _text(name: bytes) -> str:
    return name.decode(errors="replace")
