"""What was predicted against what the worker reported: how wrong is a source, and for how long.

A source whose predictions keep failing is demoted: its worker is judged by what was sent there,
until the predictions are right again. They are made and compared all the while.
"""

from bisect import bisect_left

#: Upper ends of the error histogram, in tokens: reported minus predicted.
ERRORS = (-4096, -1024, -256, -64, -1, 0, 64, 256, 1024, 4096)
#: Weight of one answer in the share of wrong predictions.
WEIGHT = 1 / 16
#: A source is demoted above the first share of wrong predictions, and believed below the second.
DEMOTED, BELIEVED = 0.5, 0.25
#: Answers of prompts with something new in them, without any event, that make a stream silent.
UNHEARD = 4


class Truth:
    """The record of one worker."""

    def __init__(self) -> None:
        self.wrong = 0.0
        """Share of the last predictions that were off by more than a block."""
        self.demoted = False
        self.reports: bool | None = None
        """Whether its answers tell cached tokens; None if there was none that could."""
        self.compared = 0
        self.sum = 0
        """Of all errors, in tokens: divided by `compared` it is the bias."""
        self.buckets = [0] * (len(ERRORS) + 1)
        """Errors up to each end of `ERRORS`, and those above."""
        self._unheard = 0
        self._events = 0

    def observe(self, predicted: int, reported: int, block: int) -> None:
        """A worker reported its cached tokens; `block` is what may be off without harm."""
        error = reported - predicted
        self.compared += 1
        self.sum += error
        self.buckets[bisect_left(ERRORS, error)] += 1
        self.wrong += WEIGHT * ((abs(error) > block) - self.wrong)
        if self.wrong > DEMOTED:
            self.demoted = True
        elif self.wrong < BELIEVED:
            self.demoted = False

    def answered(self, tells: bool) -> None:
        """An answer told how long its prompt was, and maybe how much of it was cached. Not all that
        can tell do so always: once is enough."""
        self.reports = tells or bool(self.reports)

    def computed(self, before: int, events: int) -> None:
        """A prompt was computed there, and blocks of it must be announced; so many events there
        were `before` it was sent, and are now.

        One event may announce what many prompts made, so each answer is judged by its own time.
        """
        if events != self._events:
            self._unheard = 0
        self._unheard += events == before
        self._events = events

    def silent(self, events: int) -> bool:
        """Whether it computes, and announces nothing; so many events there are by now."""
        return self._unheard >= UNHEARD and events == self._events

    @property
    def bias(self) -> float:
        """Mean error in tokens; below zero where more was predicted than found."""
        return self.sum / self.compared if self.compared else 0.0
