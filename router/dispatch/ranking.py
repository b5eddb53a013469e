"""Ranks the workers that could take a request now."""

from collections.abc import Sequence
from time import monotonic

from msgspec.structs import replace

from router.dispatch.scheduler import Scheduler
from router.fleet.pool import Pool
from router.fleet.worker import Worker
from router.sessions.use import Visit
from strategies.api import Decision, Prompt


class Deciding:
    """Decisions among the workers that have room. One instance for the whole router."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def with_room(self, pool: Pool, prompt: Prompt, workers: Sequence[Worker]) -> Decision | None:
        """Rank the workers with room, for a request that waits; None if none has room."""
        able = self._scheduler.room(workers)
        return self.rank(pool, prompt, able) if able else None

    def among(
        self, pool: Pool, prompt: Prompt, workers: Sequence[Worker], only: str = ""
    ) -> Decision:
        """Rank the workers with room, or all if none has any, for a request that is to wait.

        `only`: just one will do, as it has the response that the request goes on from.
        """
        able = self._scheduler.room(workers, bound=bool(only)) or workers
        decision = self.rank(pool, prompt, able)
        return replace(decision, reason="response", stays=True) if only else decision

    def in_session(
        self,
        pool: Pool,
        prompt: Prompt,
        visit: Visit,
        home: Worker | None,
        workers: Sequence[Worker],
        *,
        stays: bool = False,
    ) -> tuple[Prompt, Decision, bool]:
        """Do as `among` for a session's request, whose worker is `home`; if it `stays`, room or no.

        Returns also the prompt with that worker, and whether some workers had no room.
        """
        if home is not None and home not in workers:
            workers = [home, *workers]  # its worker is draining or ejected
        bound = replace(prompt, bound=visit.place(pool))
        able = self._scheduler.room(workers, bound=True) or workers
        if stays and home is not None and home not in able:
            able = [home, *able]
        decision = visit.named(self.rank(pool, bound, able), workers)
        return bound, decision, len(decision.candidates) < len(workers)

    def rank(self, pool: Pool, prompt: Prompt, workers: Sequence[Worker]) -> Decision:
        """Rank `workers`; those whose latest answers were bad come last."""
        rests, outliers, now = self._scheduler.rests, pool.outliers, monotonic()
        # A session's worker is not put last for being full: only it holds the session's prefix.
        awake = rests.awake(workers, now) if rests and not prompt.bound else workers
        if outliers and not prompt.bound:
            awake = outliers.first(prompt.path, awake)
        if len(awake) == len(workers):
            return pool.strategy.rank(prompt, workers, now)
        # The strategy reads from its latest ranking how busy the fleet is, so rank the resting
        # workers first.
        first = set(awake)
        others = [worker for worker in workers if worker not in first]
        last = pool.strategy.rank(prompt, others, now)
        decision = pool.strategy.rank(prompt, awake, now)
        candidates = [*decision.candidates, *last.candidates]
        return Decision(candidates, decision.reason, aside=len(others), drawn=decision.drawn)
