"""One request booked on one worker: what it is expected to take, and what became of it."""

from collections.abc import Sequence

from strategies.constants import MARGIN


class Booking:
    """One request on one worker. Pass it back to `Load` to mark its first byte and its end.

    (Not a dataclass: generated methods of dataclasses are not compiled.)
    """

    def __init__(
        self,
        prefill_s: float,
        kv_tokens: int,
        uncached: int,
        stream: bool,
        at: float,
        *,
        elsewhere: bool,
        since: float | None,
    ) -> None:
        self.prefill_s = prefill_s
        """Predicted prefill time there, in seconds."""
        self.kv_tokens = kv_tokens
        """Tokens it may take in the KV cache."""
        self.uncached = uncached
        """Prompt tokens to compute, or to load from slower tiers."""
        self.stream = stream
        """Whether its first byte means that the prefill is done."""
        self.at = at
        """When it was booked."""
        self.elsewhere = elsewhere
        """Another process of this router serves it."""
        self.since = since
        """When its request came, if the worker can be made to drop it; None: it cannot."""
        self.keys: Sequence[int] = ()
        """The keys of its prompt."""
        self.held_blocks = 0
        """How many of its first blocks it need not compute."""
        self.computed_s: float | None = None
        """Seconds its prefill took while the worker computed no other prompt; None if unknown."""
        self.whole_s: float | None = None
        """Seconds for an answer in one piece, if it came before its prefill counted as done."""
        self.taken_back = False
        """The worker did not accept it."""


def late_s(head: Booking, spent: float) -> float:
    """Return how many seconds late the oldest booking of a worker is: beyond the margin.

    None that another process serves is late: news of its first byte may be lost.
    """
    return 0.0 if head.elsewhere else max(0.0, spent - MARGIN * head.prefill_s)
