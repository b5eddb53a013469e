"""One cell of the seeds benchmark: the results of a router on a workload with given tiers."""

from collections import Counter
from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple

from msgspec import Struct

from benchmarks.routing.columns import quantile
from benchmarks.routing.drive import Placed, VirtualDrive
from benchmarks.routing.workloads import remembered
from benchmarks.seeds.fleet import BARE, BASELINE, REPLICAS, RouterSetup, TierSetup
from benchmarks.seeds.workloads import Seed

#: Range of the baseline's hit rate in the better specified of AWS's two reports.
MIN_BASELINE_HIT, MAX_BASELINE_HIT = 0.25, 0.30
#: Simulated seconds of a calibration run.
TRIAL_S = 600.0
MAX_HALVINGS = 12


class SeedResult(Struct, frozen=True):
    """The results of one run. Times are in simulated seconds; shares are from 0 to 1."""

    seed: str
    router: str
    setup: str
    requests: int
    p50_s: float
    p90_s: float
    throughput: float
    """Answer tokens per second of the whole fleet, for requests that have ended."""
    gpu: float
    """Prompt tokens found on the GPU, as a share of all; `l1` and `l2` likewise."""
    l1: float
    l2: float
    least_share: float
    """Share of the requests on the replica with the fewest; `most_share`: with the most."""
    most_share: float

    @property
    def hit(self) -> float:
        """Return the prompt tokens found on any tier, as a share of all."""
        return self.gpu + self.l1 + self.l2

    @property
    def cost(self) -> float:
        """Replica hours per million answer tokens."""
        return REPLICAS * 1e6 / self.throughput / 3600.0


class Task(NamedTuple):
    """A cell to compute."""

    seed: Seed
    router: RouterSetup
    setup: TierSetup
    population: int
    clients: int
    number: int
    """Random seed; the same task gives the same cell on any machine."""
    span_s: float


def cell(task: Task) -> SeedResult:
    """Run a task for its span; requests that have not ended by then do not count."""
    seed, router, span = task.seed, task.router, task.span_s
    hold = None if router.hold is None else router.hold()
    fleet = task.setup.fleet(seed.block_tokens)
    drive = VirtualDrive(fleet, lambda seats: router.make(seats, task.number), hold, until_s=span)
    done = [
        placed
        for placed in drive.run(seed.work(task.number, task.clients, task.population))
        if placed.asked.at_s + placed.ended_s <= span
    ]
    return _summed(task, done)


def _summed(task: Task, done: Sequence[Placed]) -> SeedResult:
    firsts = sorted(placed.first_s for placed in done)
    jobs = [placed.asked.job for placed in done]
    tokens = sum(job.prompt_tokens for job in jobs)
    l1, l2 = sum(job.l1_tokens for job in jobs), sum(job.l2_tokens for job in jobs)
    cached = sum(job.cached_tokens or 0 for job in jobs)
    shares = Counter(placed.seat.name for placed in done).values()
    return SeedResult(
        *(task.seed.name, task.router.name, task.setup.name, len(done)),
        *(quantile(firsts, 0.5), quantile(firsts, 0.9)),
        sum(job.answer_tokens for job in jobs) / task.span_s,
        *((cached - l1 - l2) / tokens, l1 / tokens, l2 / tokens),
        *(min(shares) / len(done), max(shares) / len(done)),
    )


def bound(seed: Seed, population: int, clients: int, number: int, turns: int) -> float:
    """Return the hit rate of one infinite cache on `turns` requests of each client."""
    talks = seed.work(number, clients, population).talks
    requests = (talk.turns[place] for place in range(turns) for talk in talks)
    held = tokens = 0
    for turn, cached in remembered(requests, seed.block_tokens):
        held += cached
        tokens += turn.prompt_tokens
    return held / tokens


def calibrated(seed: Seed, clients: int, number: int, span_s: float = TRIAL_S) -> int:
    """Return the population of contexts that gives the baseline its published hit rate.

    That is `seed.most` if the baseline's hit rate is at least `MIN_BASELINE_HIT` even without
    repetition. Nothing else is calibrated. Raises ValueError if no population gives that rate.
    """
    low, high = 1, seed.most

    def hit(population: int) -> float:
        return cell(Task(seed, BASELINE, BARE, population, clients, number, span_s)).hit

    if hit(high) >= MIN_BASELINE_HIT:
        return high
    high = min(high, 4096)
    for _ in range(MAX_HALVINGS):
        middle = round(sqrt(low * high))
        rate = hit(middle)
        if MIN_BASELINE_HIT <= rate <= MAX_BASELINE_HIT:
            return middle
        if rate > MAX_BASELINE_HIT:
            low = middle
        else:
            high = middle
    raise ValueError(f"{seed.name}: no population makes the baseline hit {MIN_BASELINE_HIT:.0%}")
