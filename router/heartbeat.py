"""Whether another process still answers: it is asked at every beat, and what it misses is counted.

Beats count, not seconds: where the machine was suspended, or whoever asks had no turn, one beat is
missed at most, however long that was.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from router.channel import Channel, Lost, Refusal


@dataclass(frozen=True, slots=True)
class Patience:
    """What a process may miss."""

    beat_s: float = 1.0
    """Seconds between two beats."""
    silent: int = 3
    """Beats missed in a row after which it is given nothing new."""
    dead: int = 10
    """Beats missed in a row after which it is not waited for."""

    @property
    def silent_s(self) -> float:
        """How long it has not answered then, at least."""
        return self.silent * self.beat_s

    @property
    def dead_s(self) -> float:
        """How long it has not answered then, at least."""
        return self.dead * self.beat_s


USUAL = Patience()


class Sign(Enum):
    """What has changed at a beat."""

    SILENT = "silent"
    BACK = "back"
    """It answers, having been silent."""
    DEAD = "dead"


class Beats:
    """Those of one process. Pure."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._missed = 0

    def count(self, *, answered: bool) -> Sign | None:
        """One more has passed; return what has changed, if anything."""
        before, self._missed = self._missed, 0 if answered else self._missed + 1
        if answered:
            return Sign.BACK if before >= self._patience.silent else None
        if self._missed == self._patience.dead:
            return Sign.DEAD
        return Sign.SILENT if self._missed == self._patience.silent else None


async def watch(channel: Channel, patience: Patience, changed: Callable[[Sign], None]) -> None:
    """Call `changed` whenever something has, until cancelled."""
    beats = Beats(patience)
    # The same question until it is answered: one who is slow, and answers late, does not hang.
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
    """Wait until it does; False if its end of the channel is gone, though it may still be there."""
    try:
        await channel.ask("alive")
    except Lost:
        return False
    except Refusal:  # an answer like any other
        pass
    return True
