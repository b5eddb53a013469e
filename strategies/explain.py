"""A decision in words and numbers: each worker's cost, and why the first worker is first."""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

from strategies.api import FREE, Candidate, Cost, Decision, Prompt

#: What a request would wait for before it is sent: a place, or a worker that is about to be free.
Waits = Literal["", "place", "held"]
_WAITS: dict[Waits, str] = {
    "": "",
    "place": " Before that it would queue: no worker that it may go to has room, or others came"
    " first.",
    "held": " Before that it would be held until a worker is about to be free.",
}
#: All terms of a cost in one line.
_TERMS = "; ".join(["held=%d", *(f"{name}=%.3fs" for name in Cost._fields)])


class Term(Struct, frozen=True):
    """One worker's cost, in seconds, and what it is believed to hold, in tokens.

    All null but the worker and `preempts` if the strategy does not compare costs.
    """

    worker: str
    held_tokens: int | None = None
    l1_tokens: int | None = None
    """The part of `held_tokens` to load from host memory."""
    l2_tokens: int | None = None
    """The part of `held_tokens` to load from a disk or a shared store."""
    wait: float | None = None
    prefill: float | None = None
    price: float | None = None
    decode: float | None = None
    room: float | None = None
    home: float | None = None
    total: float | None = None
    preempts: int = 0
    """Longer prompts there that would give way to this one; its `wait` is without them, but for the
    step that the worker would have to end."""


class LeftOut(Struct, frozen=True):
    """A worker of the pool that was not compared with the others."""

    worker: str
    state: str
    """As in `/workers`; or `full`, `other` if it does not serve the model, `unable` if it
    cannot answer such a request, or `unranked` if the strategy left it out."""
    reason: str


class Rejection(Struct, frozen=True):
    """The error that the request would get."""

    status: int
    code: str | None
    message: str

    @property
    def words(self) -> str:
        """The end of a sentence about the request, with all of it."""
        code = f" ({self.code})" if self.code else ""
        return f"would get {self.status}{code}: {self.message}"


class Explanation(Struct, frozen=True):
    """Why a prompt goes where it goes, or nowhere."""

    model: str
    tokens: int
    """Length of the prompt; an estimate where it was not tokenized."""
    blocks: int
    """Number of keys that it was looked up by."""
    reason: str
    words: str
    workers: list[Term]
    """Best first; if two were drawn (`poweroftwo`), these two, then the others."""
    waits: Waits = ""
    """What it would wait for before it is sent."""
    pool: str = ""
    """The pool of these workers."""
    left_out: Sequence[LeftOut] = ()
    """The other workers of the pool, and why they are out of the question."""
    refused: Rejection | None = None
    """What it would get instead of being sent; None if it would be sent."""


def explain(
    prompt: Prompt,
    decision: Decision,
    waits: Waits = "",
    left_out: Sequence[LeftOut] = (),
    *,
    refused: Rejection | None = None,
    sessionless: bool = False,
    pool: str = "",
) -> Explanation:
    """Explain a decision in full; if the request `waits`, it is decided anew afterwards.

    `refused`: it does not come to that. `sessionless`: it names a session in vain.
    """
    workers = [_term(candidate) for candidate in decision.candidates]
    text = words(prompt, decision) + (_WAITS[waits] if waits or refused else gives_way(decision))
    if refused:
        text += f" But it {refused.words}"
    if sessionless:
        text += " The session that it names is ignored: its pool's strategy keeps none."
    if prompt.too_long:
        text += " The prompt is longer than its model takes, so it is refused there: it is no work."
    about = prompt.model, prompt.too_long or prompt.tokens, len(prompt.keys)
    return Explanation(*about, decision.reason, text, workers, waits, pool, left_out, refused)


def nowhere(
    prompt: Prompt, refused: Rejection, left_out: Sequence[LeftOut], *, pool: str
) -> Explanation:
    """Explain that no worker is left for a request."""
    about = prompt.model, prompt.tokens, len(prompt.keys), "refused", f"It {refused.words}"
    return Explanation(*about, [], "", pool, left_out, refused)


#: Sentences for strategies that do not compare costs, by reason.
_FREE = {
    "turn": "It is {}'s turn.",
    "prefix": "Prompts that begin like this one go to {}.",
    "spill": "The worker for prompts that begin like this one is above its bound; {} is next.",
}

#: Sentences for requests that are bound to a worker, by reason.
_SESSION = {
    "bind": "The session starts on {}.",
    "session": "The session is bound to {}.",
    "rebind": "The session has lost its worker; {} takes it over.",
    "response": "The response that it goes on from is kept by {} alone.",
}

#: Why `kvaware` did not go by a worker's events, by the words in brackets after a reason.
_DOUBTS = {
    "text": "the prompt's tokens are not known",
    "no memory": "without a running router there are no events",
    "no events": "it is not known where it publishes events",
    "not connected": "there is no connection to its events",
    "gap": "some of its events were missed",
    "late": "its events come faster than they are applied",
    "silent": "it computes prompts and announces nothing",
    "disagrees": "it keeps reporting other cached tokens than its events promise",
    "controller slow": "the controller did not answer in time",
    "no controller": "the controller does not answer",
}


def words(prompt: Prompt, decision: Decision) -> str:
    """Say why the first worker is first."""
    reason, _, doubt = decision.reason.partition(" ")
    text = _first(prompt, decision, reason)
    if (why := _DOUBTS.get(doubt[1:-1])) is not None:
        text += f" {decision.candidates[0].worker.name} was judged by what was sent there: {why}."
    return text


def _first(prompt: Prompt, decision: Decision, reason: str) -> str:
    first = dearest = decision.candidates[0]
    name, held = first.worker.name, f"{first.held_tokens} of {prompt.tokens} tokens"
    if reason == "spill" and prompt.bound:
        return _left_home(prompt.bound, decision)
    if reason in _SESSION:
        text = _SESSION[reason].format(name)
    elif first.cost is FREE:
        text = _FREE.get(reason, "{} was chosen.").format(name)
    elif reason == "cold":
        text = f"No worker holds any of the prompt; {name} is cheapest."
    elif reason == "prefix":
        text = f"{name} holds most of the prompt, {held}, and costs least."
    elif reason in {"l1", "l2"}:
        seconds, l1, l2 = first.loading
        come = f"{l1} come from L1 and {l2} from L2 in {seconds:.3f} s"
        text = f"{name} need not compute {held}: {come}."
    elif reason == "spill":
        dearest = max(decision.candidates, key=lambda candidate: candidate.held_tokens)
        more = f"{dearest.worker.name} holds more, {dearest.held_tokens} of {prompt.tokens} tokens"
        text = f"{more}, but {_against(dearest, decision)}."
    else:
        few = "No worker holds enough of the prompt: " if reason == "below_threshold" else ""
        text = few + _least_loaded(decision)
    return text + _dearest(dearest)


def instead(decision: Decision, answers: Candidate) -> str:
    """Say that another one answers than the first, if so: what follows the `words`."""
    first = decision.candidates[0]
    if answers is first:
        return ""
    return f" But {first.worker.name} did not take the request: {answers.worker.name} answered."


def _least_loaded(decision: Decision) -> str:
    """Say that the first worker is least loaded, or less than the other one that was drawn."""
    first = decision.candidates[0]
    name = first.worker.name
    if not decision.drawn:
        return f"{name} is least loaded."
    other = decision.candidates[1]
    if first.cost.total < other.cost.total:
        return f"{name} is the less loaded of the two drawn; the other is {other.worker.name}."
    return f"{name} and {other.worker.name} were drawn and cost the same; it is {name}'s turn."


def _left_home(bound: str, decision: Decision) -> str:
    """Say why a session moves away from its worker, `bound`."""
    first = decision.candidates[0]
    candidates = decision.candidates
    home = next((other for other in candidates if other.worker.name == bound), None)
    why = "has no room" if home is None else _against(home, decision)
    return f"The session moves to {first.worker.name}: {bound} {why}.{_dearest(home or first)}"


def _against(other: Candidate, decision: Decision) -> str:
    """Say why `other`, which would otherwise have been chosen, was not."""
    cost = decision.candidates[0].cost
    apart = other.cost.total - cost.total
    full = apart < 0.0 or cost is FREE
    return "says that it is full" if full else f"costs {apart:.3f} s more"


def _dearest(candidate: Candidate) -> str:
    """Return a sentence that names the largest term of the cost; empty below 0.5 ms."""
    cost = candidate.cost
    if (seconds := max(cost)) < 0.0005:
        return ""
    term = cost._fields[cost.index(seconds)]
    return f" Most of the cost of {candidate.worker.name} is {term}, {seconds:.3f} s."


def gives_way(decision: Decision) -> str:
    """Return a sentence about the prompts that it preempts; empty if there are none."""
    preempts = decision.candidates[0].preempts
    if not preempts:
        return ""
    return f" {preempts} longer prompt{'s give' if preempts > 1 else ' gives'} way to it there."


def terms(candidate: Candidate) -> str:
    """Return the terms of one cost in a line; empty if costs are not compared."""
    cost = candidate.cost
    return "" if cost is FREE else _TERMS % (candidate.held_tokens, *cost)


def _term(candidate: Candidate) -> Term:
    name, cost, (_, l1, l2) = candidate.worker.name, candidate.cost, candidate.loading
    if cost is FREE:
        return Term(name)
    return Term(name, candidate.held_tokens, l1, l2, *cost, cost.total, candidate.preempts)
