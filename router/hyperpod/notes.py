"""What became of each field of a manifest."""

from enum import Enum
from typing import NamedTuple


class Fate(Enum):
    """What became of a field."""

    MAPPED = "mapped"
    """It is a setting of ours, or needs none."""
    ELSEWHERE = "elsewhere"
    """It tells others what to do: the engine, Kubernetes, AWS. The router has no part in it."""
    LOST = "lost"
    """It is about routing, and nothing here does it."""


class Note(NamedTuple):
    """One field, or a part of the manifest that shares its fate."""

    field: str
    """As in `spec.worker.requestLimits.maxQueueSize`."""
    value: str
    """As the manifest has it; what may be secret is `***`, what is long is counted."""
    became: str
    """The setting it is, or why it is none."""
    fate: Fate

    def __str__(self) -> str:
        return f"{self.field}: {self.became}"
