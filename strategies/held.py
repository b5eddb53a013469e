"""One request that is held in the router: where it would go by now, and how it ranks among others.

The need of a held request, by which the shortest is sent first, is its prefill time, which shrinks
for each second of waiting (`aging.py`). One that still lacks room in the KV cache after `LACKING_S`
goes before all others.
"""

from collections.abc import Callable, Mapping
from typing import Final, Generic, TypeVar

from strategies.base import Decision, Prompt, nothing
from strategies.constants import MARGIN
from strategies.load import Load

T = TypeVar("T")

#: After this many seconds, a request that lacks room in the KV cache goes before all others, and
#: its tokens count as taken. Reserving room at once would mean first come, first served: room stays
#: idle until it suffices for a large prompt, which waits no longer than the small ones it delays.
#: Reserving it this late is rarely needed, and leaves a quarter of the longest hold to find room.
LACKING_S = 20.0
#: The longest hold in seconds, for a request that some worker accepts: less than the default of
#: `timeouts.queue`, so that there is time left to begin.
LONGEST_S = 27.0
#: Requests that lack room wait for tokens of the KV cache, not only for prefill, so those that take
#: much of it come later: a prompt that takes all of it as if its prefill took this much longer.
AREA_S: Final = 4.6
#: Seconds until the decision for a held request is made anew, as the fleet changes; shorter if it
#: lacks room, because no event tells when room comes free.
LOOK_S, FULL_LOOK_S = 0.5, 0.1
#: How many of the best workers are remembered from one decision to the next.
REMEMBERED = 16


class Held(Generic[T]):
    """One held request."""

    __slots__ = (
        "again",
        "area_s",
        "full",
        "item",
        "line",
        "load",
        "over",
        "prefill_s",
        "prompt",
        "rests",
        "since",
        "tokens",
    )

    def __init__(
        self, item: T, prompt: Prompt, since: float, decision: Decision, tenant: str
    ) -> None:
        self.item = item
        """Anything of the caller's, to identify the request."""
        self.line = tenant, prompt.model
        self.prompt = prompt
        self.since = since
        self.over: Callable[[], object] = nothing
        """Called when it is not held any more."""
        self.look(decision, since)

    def look(self, decision: Decision, now: float) -> None:
        """Store the decision: where it would go now."""
        candidates = decision.candidates[:REMEMBERED]
        choice = candidates[0]
        self.load: Load = choice.worker.load
        self.rests = {c.worker.load: c.cost.total - c.cost.wait for c in candidates}
        """Its cost on each of the best workers, without the wait."""
        self.prefill_s = choice.cost.prefill
        """Its prefill time on the best worker."""
        self.tokens = self.prompt.tokens - choice.held_tokens + self.prompt.answer_tokens
        """Tokens it takes in the KV cache there, beyond those already held."""
        self.full = choice.cost.room > 0.0
        self.area_s = 0.0
        """Seconds that it comes later for what it takes of the KV cache."""
        if self.full:
            told = [c.worker.room_tokens for c in candidates if c.worker.room_tokens]
            room = choice.worker.room_tokens or min(told, default=0)
            self.area_s = AREA_S * self.prompt.tokens / room if room else 0.0
        self.look_again(now)

    def need(self, now: float, aging: float) -> tuple[bool, float]:
        """Return the sort key, least first: prefill seconds minus what its waiting makes up for.

        A second of waiting makes up for `aging` seconds.

        Requests that lack room after a long wait come before all others, in order of arrival.
        Otherwise small prompts would take every token that comes free before a large one can. So
        do those that were held for so long that they are sent.
        """
        if self.is_first(now):
            return False, self.since
        return True, self.prefill_s + self.area_s - aging * (now - self.since)

    def is_first(self, now: float) -> bool:
        """Whether it goes before all others, whatever it needs."""
        return self.is_over(now) or self.lacks(now)

    def is_over(self, now: float) -> bool:
        """Whether it was held for `LONGEST_S`."""
        return now - self.since >= LONGEST_S

    def lacks(self, now: float) -> bool:
        """Whether it lacks room in the KV cache and has waited for `LACKING_S`."""
        return self.full and now - self.since >= LACKING_S

    @property
    def lacking(self) -> int:
        """Tokens of the KV cache that count as taken by it once it goes before all others."""
        return self.tokens if self.full else 0

    def look_again(self, now: float) -> None:
        """Set when it is due to be decided anew."""
        self.again = now + (FULL_LOOK_S if self.full else LOOK_S)

    def gains(self, ready: Mapping[Load, float], now: float) -> bool:
        """Whether one of the `ready` workers has become the cheapest."""
        if self.full:
            return False
        rests, load = self.rests, self.load
        cost = rests[load] + load.wait(now) + MARGIN * load.promised_s
        return any(
            one in rests and rests[one] + wait + MARGIN * one.promised_s <= cost
            for one, wait in ready.items()
        )
