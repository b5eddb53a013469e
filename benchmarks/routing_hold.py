"""What a run of the routing benchmark can be given besides a strategy: a hold, and an observer."""

from collections.abc import Callable, Collection
from typing import Any, Protocol

from strategies.base import Decision, Prompt
from strategies.load import Load
from strategies.queue import Wait


class Held(Protocol):
    """A request held in the router."""

    item: Any
    prompt: Prompt


class Hold(Protocol):
    """The holding of requests (late binding), as far as the drive uses it."""

    def __len__(self) -> int:
        """The number of held requests."""

    def must_hold(self, decision: Decision, now: float) -> bool:
        """Whether even the best choice is too busy to take the request now."""

    def enter(
        self,
        item: Any,  # noqa: ANN401 - the caller decides
        prompt: Prompt,
        decision: Decision,
        now: float,
        *,
        wait: Wait,
    ) -> Held:
        """Hold a request; `wait` tells when it came."""

    def release(
        self, rank: Callable[[Any], Decision], now: float, loads: Collection[Load]
    ) -> tuple[Held, Decision] | None:
        """Return the next request to send, and where to, or None.

        It is called after every change, repeatedly until it returns None.
        """


class Watch(Protocol):
    """An observer that can end a run early: each method returns whether its result is certain."""

    def asked(self, number: int, now: float) -> bool:
        """Note that a request has arrived at time `now`."""

    def begun(self, number: int, first_s: float) -> bool:
        """Note that its first token came `first_s` seconds after it arrived."""
