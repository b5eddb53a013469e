"""How long the router waits for workers."""

from dataclasses import dataclass
from typing import Final

NEVER: Final = float("inf")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for a worker, in seconds."""

    connect: float
    first_byte: float
    """Until the first byte of the answer's body."""
    idle: float
    """Between two reads after that."""
    keepalive: float
    """How long an unused connection is kept; below the worker's own limit, or the two race."""
    total: float = NEVER
    """For the whole answer."""
