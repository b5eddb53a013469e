"""Requests that come to a few workers, are held, and are released again."""

from strategies.base import Candidate, Cost, Decision, Prompt
from strategies.latebinding import READY_TOKENS, LateBinding
from strategies.load import Load
from strategies.pace import Pace

#: A model that every worker serves; each also serves a model with its own name.
ANY = "any"
#: More tokens than one engine step computes.
MANY = READY_TOKENS + 1


class Stand:
    """A worker with so many seconds of prefill to do."""

    def __init__(self, name: str, busy_s: float = 0.0) -> None:
        self.name = name
        self.load = Load()
        self.pace = Pace()
        self.kv_tokens: int | None = None
        self.room_tokens: int | None = None
        if busy_s:
            self.load.book(0.0, busy_s, uncached=MANY, stream=False)


class Desk:
    """Decides by wait and prefill alone; each prompt token takes a second on any worker."""

    def __init__(self, *workers: Stand) -> None:
        self.workers = workers
        self.binding: LateBinding[str] = LateBinding()
        self.now = 0.0
        self.decided = 0
        """Number of decisions so far."""

    def rank(self, prompt: Prompt) -> Decision:
        """Compare the workers that serve the model."""
        costs = [
            Candidate(w, Cost(w.load.wait(self.now) + w.load.promised_s, float(prompt.tokens)))
            for w in self.workers
            if prompt.model in {w.name, ANY}
        ]
        self.decided += 1
        return Decision(sorted(costs, key=lambda c: c.cost.total), "load")

    def come(self, name: str, tokens: int, model: str = ANY, tenant: str = "") -> bool:
        """Let a request arrive; return whether it is held."""
        prompt = Prompt(model, tokens)
        decision = self.rank(prompt)
        if not self.binding.must_hold(prompt, decision, self.now):
            return False
        self.binding.enter(name, prompt, decision, self.now, tenant)
        return True

    def released(self) -> list[str]:
        """Return the requests that are released now; each is booked before the next is asked
        for."""
        names = []
        loads = [worker.load for worker in self.workers]
        while released := self.binding.release(self.rank, self.now, loads):
            held, decision = released
            choice = decision.candidates[0]
            seconds = choice.cost.prefill
            choice.worker.load.book(self.now, seconds, uncached=MANY, stream=False)
            names.append(held.item)
        return names
