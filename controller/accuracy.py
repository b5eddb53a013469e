"""Predicted against reported cached tokens: the track record of a worker's events.

A worker whose events keep giving wrong predictions is demoted: it is judged by what was sent there
until the predictions are right again. They continue to be made and compared meanwhile.
"""

from bisect import bisect_left

#: Upper bounds of the error histogram, in tokens: reported minus predicted.
ERRORS = (-4096, -1024, -256, -64, -1, 0, 64, 256, 1024, 4096)
#: Weight of one answer in the share of wrong predictions.
WEIGHT = 1 / 16
#: A worker is demoted above the first share of wrong predictions, and believed below the second.
DEMOTED, BELIEVED = 0.5, 0.25
#: A stream is silent after this many answers to prompts with new blocks, without any event.
UNHEARD = 4


class Truth:
    """The record of one worker."""

    def __init__(self) -> None:
        self.wrong = 0.0
        """Share of recent predictions that were off by more than a block."""
        self.demoted = False
        self.reports: bool | None = None
        """Whether its answers report cached tokens; None if there was no answer that could."""
        self.compared = 0
        self.sum = 0
        """Sum of all errors in tokens; divided by `compared` it is the bias."""
        self.buckets = [0] * (len(ERRORS) + 1)
        """Number of errors up to each bound in `ERRORS`, and above the last."""
        self._unheard = 0
        self._events = 0

    def observe(self, predicted: int, reported: int, block: int) -> None:
        """Compare with reported cached tokens; an error of up to `block` tokens is not wrong."""
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
        """Note an answer that reported its prompt's length, and if `tells` also cached tokens.

        One report is enough, as some workers that can report do not always do it.
        """
        self.reports = tells or bool(self.reports)

    def computed(self, before: int, events: int) -> None:
        """Note an answer to a prompt whose new blocks the worker must have announced.

        `before` is how many events there were when it was sent, `events` how many there are now.
        One event may announce the blocks of many prompts, so each answer is judged by the events
        during its own time.
        """
        if events != self._events:
            self._unheard = 0
        self._unheard += events == before
        self._events = events

    def silent(self, events: int) -> bool:
        """Whether the worker computes and announces nothing; `events` is the number by now."""
        return self._unheard >= UNHEARD and events == self._events

    @property
    def bias(self) -> float:
        """Mean error in tokens; negative if more was predicted than found."""
        return self.sum / self.compared if self.compared else 0.0
