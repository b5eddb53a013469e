"""Watches whether another process still answers: asks at every beat and counts the missed ones.

Beats are counted, not seconds: if the machine was suspended, or the asking process got no CPU, at
most one beat is missed, however long that took.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from router.processes.channel import Channel, Lost, Refusal


@dataclass(frozen=True, slots=True)
class Patience:
    """How many beats a process may miss."""

    beat_s: float = 1.0
    """Seconds between two beats."""
    silent: int = 3
    """Beats missed in a row after which it gets nothing new."""
    dead: int = 10
    """Beats missed in a row after which it is given up."""
    start: int = 600
    """The same until it serves: a machine may be busy, and a strategy may load a lot."""

    @property
    def starting(self) -> "Patience":
        """With a process that has not begun to serve."""
        return replace(self, silent=self.start, dead=self.start)

    @property
    def silent_s(self) -> float:
        """Seconds without an answer, at least, until it counts as silent."""
        return self.silent * self.beat_s

    @property
    def dead_s(self) -> float:
        """Seconds without an answer, at least, until it counts as dead."""
        return self.dead * self.beat_s


USUAL = Patience()


class Sign(Enum):
    """What has changed at a beat."""

    SILENT = "silent"
    BACK = "back"
    """It answers again after it was silent."""
    DEAD = "dead"


class Beats:
    """Counts the missed beats of one process. Pure."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._missed = 0

    def count(self, *, answered: bool) -> Sign | None:
        """Count one more beat; return what has changed, if anything."""
        before, self._missed = self._missed, 0 if answered else self._missed + 1
        if answered:
            return Sign.BACK if before >= self._patience.silent else None
        if self._missed == self._patience.dead:
            return Sign.DEAD
        return Sign.SILENT if self._missed == self._patience.silent else None


async def watch(channel: Channel, patience: Patience, changed: Callable[[Sign], None]) -> None:
    """Watch a process until cancelled; call `changed` at every change."""
    beats = Beats(patience)
    # One question stays open until it is answered: a process that answers late does not hang.
    question = asyncio.create_task(_answers(channel))
    try:
        while True:
            await asyncio.sleep(patience.beat_s)
            answered = question.done() and question.result()
            if answered:
                question = asyncio.create_task(_answers(channel))
            sign = beats.count(answered=answered)
            if sign is not None:
                changed(sign)
    finally:
        question.cancel()


async def _answers(channel: Channel) -> bool:
    """Wait for its answer; False if its end of the channel is gone, even if it still runs."""
    try:
        await channel.ask("alive")
    except Lost:
        return False
    except Refusal:  # a refusal is an answer, too
        pass
    return True
