"""Notes on what became of each field of a manifest."""

from enum import Enum
from typing import NamedTuple


class Fate(Enum):
    """What became of a field."""

    MAPPED = "mapped"
    """It became a setting of ours, or needs none."""
    ELSEWHERE = "elsewhere"
    """It is for others: the engine, Kubernetes, AWS. The router has no part in it."""
    LOST = "lost"
    """It is about routing, but not supported here."""


class Note(NamedTuple):
    """One field, or a part of the manifest that shares its fate."""

    field: str
    """The field's path, such as `spec.worker.requestLimits.maxQueueSize`."""
    value: str
    """The value in the manifest; `***` if it may be secret, a count if it is long."""
    became: str
    """The setting that it became, or why there is none."""
    fate: Fate

    def __str__(self) -> str:
        return f"{self.field}: {self.became}"
