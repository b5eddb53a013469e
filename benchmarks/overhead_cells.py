"""What is measured: every proxy under every load, in rounds that go through all of them."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from benchmarks.bench import Bench, Standing
from benchmarks.load import Job, Result

#: Bytes of a request → how many of them are sent 32 at a time, and how many one by one.
COUNTS = {400: (4000, 600), 8_700: (3000, 600), 35_000: (1500, 400), 261_000: (400, 200)}
CONCURRENCY = 32
#: 12,800 events a second: many enough that a proxy's idle ticking does not count, few enough that
#: it reads them one by one.
STREAMS, STREAMS_AT_ONCE, STREAM_BYTES = 256, 128, 400
#: At full speed: events pile up wherever they are not taken at once, as behind a busy proxy.
RUSHED, RUSHED_AT_ONCE = 1024, 32
#: Tokens, and what follows them: usage and [DONE].
STREAM_EVENTS = 102
#: Requests before measuring begins: connections are made and code is warm.
_WARM = 96


class Load(StrEnum):
    """How requests arrive."""

    ONE = "one at a time"
    MANY = "32 at a time"
    STREAM = "streams"
    RUSH = "streams at full speed"


@dataclass(frozen=True, slots=True)
class Case:
    """A load with requests of one size."""

    load: Load
    size: int
    count: int
    at_once: int

    def slower(self) -> "Case":
        """The same for a proxy that would take minutes; one that is swamped would seem cheap."""
        at_once = self.at_once // 10 if self.load is Load.STREAM else self.at_once
        # Those that are under way when measuring begins have no latency that counts.
        count = max(self.count // 20, 2 * at_once, 20)
        return Case(self.load, self.size, count, at_once)

    def job(self, port: int, seed: int, watched: Sequence[int], stubs: Sequence[int]) -> Job:
        """Return what the load generator has to do."""
        stream = self.load in {Load.STREAM, Load.RUSH}
        return Job(
            port=port,
            size=self.size,
            count=self.count,
            warm=max(min(_WARM, self.count // 4), self.at_once),
            concurrency=self.at_once,
            # No load has the requests of another: what one has taught a cache is old to the next.
            seed=seed * len(Load) + list(Load).index(self.load),
            stream=stream,
            hurried=self.load is Load.RUSH,
            # At full speed some may be cut in two by a proxy's own chunks, and are not counted.
            events=(STREAM_EVENTS - 10 * (self.load is Load.RUSH)) if stream else 0,
            watched=watched,
            stubs=stubs,
        )


@dataclass(frozen=True, slots=True)
class Cell:
    """What one proxy did in one case of one round."""

    proxy: str
    load: Load
    size: int
    round: int
    done: int
    cpu_us: float
    """CPU time of the proxy for a request or a stream."""
    p50_us: float
    p99_us: float
    rate: float
    """Requests a second."""
    proxy_share: float
    """Of one core; so the next three."""
    stub_share: float
    load_share: float
    other_share: float
    """Everything else on the machine."""
    problem: str = ""


def cases(sizes: Sequence[int], divisor: int) -> list[Case]:
    """Return all loads, each with a share of the requests."""
    found = [
        Case(load, size, max(COUNTS[size][place] // divisor, 100), at_once)
        for size in sizes
        for place, (load, at_once) in enumerate(((Load.MANY, CONCURRENCY), (Load.ONE, 1)))
    ]
    streams = max(STREAMS // divisor, STREAMS_AT_ONCE)
    return [
        *found,
        Case(Load.RUSH, STREAM_BYTES, max(RUSHED // divisor, 128), RUSHED_AT_ONCE),
        Case(Load.STREAM, STREAM_BYTES, streams, STREAMS_AT_ONCE),
    ]


def measure(
    bench: Bench, standing: Sequence[Standing], wanted: Sequence[Case], rounds: int
) -> Iterator[Cell]:
    """Yield every cell; each round begins with another proxy, to be fair."""
    for number in range(rounds):
        first = number % len(standing)
        for case in wanted:
            for one in (*standing[first:], *standing[:first]):
                fitting = case.slower() if one.slow else case
                job = fitting.job(one.port, number + 1, one.pids, bench.stub_pids)
                yield _cell(one.name, case, number, bench.run(job))


def _cell(name: str, case: Case, number: int, result: Result) -> Cell:
    done, wall = max(result.done, 1), result.wall or 1.0
    ordered = sorted(result.latencies) or [0.0]
    return Cell(
        proxy=name,
        load=case.load,
        size=case.size,
        round=number,
        done=result.done,
        cpu_us=result.cpu / done * 1e6,
        p50_us=statistics.median(ordered) * 1e6,
        p99_us=ordered[len(ordered) * 99 // 100] * 1e6,
        rate=result.done / wall,
        proxy_share=result.cpu / wall,
        stub_share=result.stub_cpu / wall,
        load_share=result.load_cpu / wall,
        other_share=result.other_cpu / wall,
        problem=result.problem,
    )
