"""Requests that come to a few workers, wait in a queue, and are released again."""

from strategies.api import Candidate, Cost, Decision, Prompt
from strategies.cost.load import Load
from strategies.cost.prefill import Pace
from strategies.hold.queue import Entry, Queue, Wait

#: A model that every worker serves; each also serves a model with its own name.
ANY = "any"
#: More tokens than any engine step computes.
MANY = 100_000


def _margin() -> float:
    """Return how many seconds of waiting a predicted second of prefill counts as."""
    load = Load()
    load.book(0.0, 1.0)
    return load.wait(0.0)


MARGIN = _margin()


class Stand:
    """A worker that is busy for so many seconds."""

    def __init__(self, name: str, busy_s: float = 0.0) -> None:
        self.name = name
        self.load = Load()
        self.pace = Pace()
        self.kv_tokens: int | None = None
        self.room_tokens: int | None = None
        if busy_s:
            self.load.book(0.0, busy_s / MARGIN, uncached=MANY, stream=False)


class Desk:
    """Decides by wait and prefill alone; each prompt token takes a second on any worker."""

    def __init__(self, *workers: Stand) -> None:
        self.workers = workers
        self.queue: Queue[str] = Queue()
        self.now = 0.0
        self.decided = 0
        """Number of decisions so far."""
        self.lacks: dict[str, float] = {}
        """Seconds of waiting for room in a KV cache, by the name of the request."""

    def decide(self, prompt: Prompt, name: str = "", only: str = "") -> Decision:
        """Compare the workers that serve the model."""
        room = self.lacks.get(name, 0.0)
        costs = [
            Candidate(
                w, Cost(w.load.wait(self.now) + w.load.promised_s, float(prompt.tokens), room=room)
            )
            for w in self.workers
            if prompt.model in {w.name, ANY} and only in {"", w.name}
        ]
        self.decided += 1
        return Decision(sorted(costs, key=lambda c: c.cost.total), "load")

    def rank(self, entry: Entry[str]) -> Decision | None:
        """Do so for one that waits."""
        return self.decide(entry.prompt, entry.item, entry.only)

    def come(self, name: str, tokens: int, model: str = ANY, tenant: str = "") -> bool:
        """Let a request arrive; return whether it waits."""
        decision = self.decide(Prompt(model, tokens), name)
        if not self.queue.must_hold(decision, self.now):
            return False
        self.enter(name, tokens, model, tenant)
        return True

    def enter(
        self,
        name: str,
        tokens: int = 4,
        model: str = ANY,
        tenant: str = "",
        *,
        since: float | None = None,
        first: bool = False,
        only: str = "",
        bound: bool = False,
    ) -> Entry[str]:
        """Let a request wait that came `since`."""
        prompt = Prompt(model, tokens)
        wait = Wait(self.now if since is None else since, self.now)
        wait.first = wait.called = first
        decision = self.decide(prompt, name, only)
        return self.queue.enter(
            name, prompt, decision, self.now, tenant, wait=wait, only=only, bound=bound
        )

    def release(self) -> str | None:
        """Return the request that is released now, which is not booked."""
        released = self.queue.release(self.rank, self.now, [one.load for one in self.workers])
        return None if released is None else released[0].item

    def free(self, *workers: Stand) -> None:
        """Let workers have done all that is booked there; all of them if none is named."""
        for worker in workers or self.workers:
            for booking in list(worker.load.pending):
                worker.load.release(booking, self.now)

    def released(self) -> list[str]:
        """Return those that are released now; each is booked before the next is asked for."""
        names = []
        loads = [worker.load for worker in self.workers]
        while released := self.queue.release(self.rank, self.now, loads):
            entry, decision = released
            choice = decision.candidates[0]
            seconds = choice.cost.prefill / MARGIN
            choice.worker.load.book(self.now, seconds, uncached=MANY, stream=False)
            names.append(entry.item)
        return names
