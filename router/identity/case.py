"""The models of one pool that have their tokenizer from one source: may it be trusted? Pure.

It is trusted once every ready worker that serves them was asked and none makes other tokens, and
as long as none does. Workers that cannot be asked are taken at the settings' word; but where
engines may make tokens another way than we do, one has to confirm ours.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf

from router.identity.agreement import Difference, State, Verdict
from router.identity.finding import Wanted
from router.identity.sources import Kind, Origin
from router.identity.volume import Volume

#: Seconds until a worker that did not agree is asked again: doubled each time, up to an hour.
FIRST_S, LONGEST_S = 15.0, 3600.0
#: Seconds until one that agreed is asked again where prompts hold the date: in another zone, or by
#: another clock, it is another one at some hours of the day. Also, where it did not tell all.
DATED_S = 600.0


@dataclass
class Asked:
    """One worker's standing."""

    verdict: Verdict
    due: float = inf
    """When it is asked again."""
    times: int = 0
    """How often in a row it did not agree."""


@dataclass(eq=False)
class Case:
    """One source and what hangs on it."""

    pool: str
    origin: Origin
    wanted: Wanted
    models: dict[str, str] = field(default_factory=dict)
    """The identity of each, by name; those that are no adapters first."""
    volume: Volume | None = None
    why: str = ""
    """Why there is none."""
    asked: dict[str, Asked] = field(default_factory=dict)
    """By worker's name."""
    missing: Wanted | None = None
    """What was looked for and is not there, so that workers are asked: it may come yet."""
    trusted: bool = False
    told: str = ""
    """What was last said of it in the log."""
    differences: dict[str, Difference] = field(default_factory=dict)
    """Those that the log has told, by worker's name."""
    choosing: bool = False
    """Clients send tools of which none may be chosen: what workers make of them is to be known."""
    taking: set[str] = field(default_factory=set)
    """Workers that agree, and take a chat's token ids along."""

    def found(self, volume: Volume | None, why: str) -> None:
        """This is what the search brought; something else than before has to be verified anew."""
        self.why = why
        if volume is not self.volume:
            self.volume = volume
            self.asked.clear()
            self.taking.clear()
            self.trusted = False

    @property
    def can_be_known(self) -> bool:
        """There is something to tokenize with."""
        return self.volume is not None or self.origin.kind is Kind.WORKER

    def waiting(self, ready: Iterable[str], now: float) -> list[str]:
        """Of these workers, return those that are to be asked now."""
        if not self.can_be_known:
            return []
        return [name for name in ready if (one := self.asked.get(name)) is None or one.due <= now]

    def judged(self, worker: str, verdict: Verdict, now: float, *, choosing: bool = False) -> None:
        """This was found out about a worker; `choosing`, also what only a chat tells.

        One that differed is believed again only when it agrees, not while it cannot be asked.
        """
        before = self.asked.get(worker)
        if before and before.verdict.state is State.DIFFERS and verdict.state is State.UNVERIFIED:
            verdict = before.verdict
        if verdict.state is State.AGREES:
            dated = self.volume is not None and self.volume.exact.dated
            untold = self.choosing and verdict.left_out is None
            due = now + DATED_S if dated or untold else inf
            if untold and not choosing:
                due = now  # clients began to send such tools while it was asked
            self.asked[worker] = Asked(verdict, due)
            return
        times = before.times + 1 if before else 1
        pause = min(LONGEST_S, FIRST_S * 2.0 ** (times - 1))
        self.asked[worker] = Asked(verdict, now + pause, times)

    def doubt(self, workers: Iterable[str] | None = None) -> None:
        """Ask these again, or all; what they said holds until then."""
        for name in self.asked if workers is None else workers:
            if name in self.asked:
                self.asked[name].due = 0.0
                self.asked[name].times = 0

    def choose(self) -> None:
        """Clients send such tools: ask those workers of which it is not known."""
        if not self.choosing:
            self.choosing = True
            self.doubt([name for name, one in self.asked.items() if one.verdict.left_out is None])

    def decide(self, workers: Iterable[str], ready: Iterable[str]) -> None:
        """Trust it or not; `workers` are all that serve it, `ready` those of them that are."""
        names, present = set(workers), set(ready)
        for gone in set(self.asked).difference(names):
            del self.asked[gone]
        for gone in set(self.differences).difference(names):
            del self.differences[gone]
        self.taking &= names
        states = {name: one.verdict.state for name, one in self.asked.items()}
        if not self.can_be_known or State.DIFFERS in states.values():
            self.trusted = False
        elif self.origin.kind is Kind.WORKER:
            self.trusted = State.AGREES in states.values()
        elif not self.trusted:
            self.trusted = bool(present) and present.issubset(states) and not self._unconfirmed

    @property
    def _unconfirmed(self) -> bool:
        """Engines may make other tokens, and no worker said that they do not."""
        return (
            self.volume is not None
            and not self.volume.sure
            and not any(map(self.agrees, self.asked))
        )

    @property
    def media(self) -> bool:
        """All workers have our tokens before an image too."""
        asked = self.asked.values()
        return self.trusted and bool(asked) and all(one.verdict.media for one in asked)

    @property
    def left_out(self) -> bool | None:
        """Whether tools of which none may be chosen are not in prompts: where workers differ on
        that, one does not tell, or none could be asked, it is not known."""
        said = {
            one.verdict.left_out for one in self.asked.values() if one.verdict.state is State.AGREES
        }
        return said.pop() if len(said) == 1 else None

    def model_of(self, served: Iterable[str]) -> str | None:
        """Return the first of these models that hangs on this source."""
        return next((name for name in served if name in self.models), None)

    def agrees(self, worker: str) -> bool:
        """It makes the same tokens, as far as is known."""
        one = self.asked.get(worker)
        return one is not None and one.verdict.state is State.AGREES

    def counts(self) -> Mapping[State, int]:
        """How many workers are in each state."""
        counts = dict.fromkeys(State, 0)
        for one in self.asked.values():
            counts[one.verdict.state] += 1
        return counts

    def sentence(self) -> str:
        """Which source was taken, and why."""
        if self.trusted and self.volume is not None:
            path = f" ({self.volume.path})" if self.origin.kind is Kind.HUB else ""
            return (
                f"tokens by {self.volume.library} ({self.volume.why}),"
                f" from {self.origin}{path}: {self.origin.why}"
            )
        if self.trusted:
            return f"tokens by asking workers: {self.origin.why}"
        return f"keyed by text: {self.reason}"

    @property
    def reason(self) -> str:
        """Why it is not trusted; empty if it is."""
        if self.trusted:
            return ""
        if not self.can_be_known:
            return self.why or self.origin.why
        if any(one.verdict.state is State.DIFFERS for one in self.asked.values()):
            return "a worker tokenizes differently"
        if self.origin.kind is Kind.WORKER and self.asked:
            return "no worker answers"
        if self.asked and self._unconfirmed:
            return "no worker confirms what engines may tokenize another way"
        return "no worker was asked yet"
