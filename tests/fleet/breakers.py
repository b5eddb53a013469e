"""Circuit breakers of a pool that has no real workers, and the log lines they produce."""

from dataclasses import dataclass, field

from router.fleet.breaker import Breaker, Breakers
from router.settings.fleet import EjectionSettings

SETTINGS = EjectionSettings.model_construct(failures=3, first=10, longest=60)


@dataclass
class Member:
    """What a pool's breakers need to know of a worker."""

    name: str
    ready: bool = True
    breaker: Breaker = field(init=False)

    def __post_init__(self) -> None:
        self.breaker = Breaker(self.name)


class Pool:
    """Members with their breakers, and every line the breakers logged."""

    def __init__(self, size: int, settings: EjectionSettings = SETTINGS) -> None:
        self.members = [Member(f"w{place}") for place in range(size)]
        self.told: list[str] = []
        self.breakers = Breakers(settings, self.members, self.told.append)

    def __getitem__(self, place: int) -> Breaker:
        return self.members[place].breaker

    def out(self) -> list[int]:
        """Return the indexes of the members that are ejected or on trial."""
        out = [place for place, member in enumerate(self.members) if not member.breaker.closed]
        assert self.breakers.any_open is bool(out)
        return out

    def admitted(self, now: float) -> list[int]:
        """Return the indexes of the ready members that requests may go to."""
        ready = [member for member in self.members if member.ready]
        chosen = self.breakers.admitted(now, ready)
        return [place for place, member in enumerate(self.members) if member in chosen]


def fail(breaker: Breaker, now: float, times: int = 1, kind: str = "closed") -> None:
    """Record `times` failed requests."""
    for _ in range(times):
        breaker.failed(now, breaker.began(now), kind)


def work(breaker: Breaker, now: float) -> None:
    """Record a successful request."""
    breaker.worked(now, breaker.began(now))
