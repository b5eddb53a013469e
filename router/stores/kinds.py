"""Whose chunks lie in a Redis, as their keys say."""

import re
from typing import NamedTuple

#: A key of LMCache's server (`chunks`), and one that LMCache in the engine's own process makes
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
    """Chunks that are named in one way."""

    model: str
    gpus: int
    """Of a worker."""
    dtype: str = ""
    """Of the KV cache, as LMCache in the engine has it in its keys; its server has not."""

    def __str__(self) -> str:
        """For people."""
        model = re.sub(r"[^ -~]", "?", self.model)[:100]
        how = f"{self.dtype}, named in the engine" if self.dtype else "named by the server"
        return f"{model} with {self.gpus} GPUs, {how}"


def kind_of(key: bytes) -> Kind | None:
    """Return whose key it is; None where it is none of LMCache's."""
    found = SERVERS.fullmatch(key)
    if found is not None:
        return Kind(_text(found["model"]), int(found["gpus"], 16))
    found = ENGINES.fullmatch(key)
    if found is None:
        return None
    return Kind(_text(found["model"]), int(found["gpus"]), _text(found["dtype"]))


def _text(name: bytes) -> str:
    return name.decode(errors="replace")
