"""The measurements of the overhead benchmark: every proxy under every load, in several rounds."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from benchmarks.harness.bench import Bench, RunningProxy
from benchmarks.harness.load import Job, Result

#: Bytes of a request → how many of them are sent 32 at a time, and how many one at a time.
REQUEST_COUNTS = {400: (4000, 600), 8_700: (3000, 600), 35_000: (1500, 400), 261_000: (400, 200)}
CONCURRENCY = 32
#: Paced streams: 12,800 events a second, enough that a proxy's idle work does not count, few enough
#: that it reads the events one by one.
STREAM_COUNT, STREAM_CONCURRENCY, STREAM_BYTES = 256, 128, 400
#: Streams in bursts: a worker writes several events at once, as a busy proxy finds them. As fast as
#: possible would leave it to chance how many events a proxy finds, and so how often it reads.
BURST_COUNT = 1024
#: Events of a stream: 100 tokens, the usage and [DONE].
STREAM_EVENTS = 102
#: Requests before measuring begins, to open connections and warm up code.
_WARM_UP_REQUESTS = 96


class Arrival(StrEnum):
    """How requests arrive."""

    ONE = "one at a time"
    MANY = "32 at a time"
    STREAM = "streams"
    BURSTS = "streams in bursts"


@dataclass(frozen=True, slots=True)
class Case:
    """A load with requests of one size."""

    load: Arrival
    size: int
    count: int
    at_once: int

    def slower(self) -> "Case":
        """Return the same with fewer requests, for a proxy that would take minutes.

        Fewer streams at once too: a saturated proxy reads several events at once and seems cheap.
        """
        at_once = self.at_once // 10 if self.load is Arrival.STREAM else self.at_once
        # Requests in flight when measuring begins have no valid latency, so more must follow.
        count = max(self.count // 20, 2 * at_once, 20)
        return Case(self.load, self.size, count, at_once)

    def job(self, port: int, seed: int, watched: Sequence[int], stubs: Sequence[int]) -> Job:
        """Return the job for the load generator."""
        stream = self.load in {Arrival.STREAM, Arrival.BURSTS}
        return Job(
            port=port,
            size=self.size,
            count=self.count,
            warm=max(min(_WARM_UP_REQUESTS, self.count // 4), self.at_once),
            concurrency=self.at_once,
            # Different requests for each load, so that none finds its prompts cached by another.
            seed=seed * len(Arrival) + list(Arrival).index(self.load),
            stream=stream,
            bursts=self.load is Arrival.BURSTS,
            events=STREAM_EVENTS if stream else 0,
            watched=watched,
            stubs=stubs,
        )


@dataclass(frozen=True, slots=True)
class Measurement:
    """The result of one proxy in one case of one round."""

    proxy: str
    load: Arrival
    size: int
    round: int
    done: int
    cpu_us: float
    """CPU time of the proxy per request or stream."""
    p50_us: float
    p99_us: float
    rate: float
    """Requests a second."""
    proxy_share: float
    """Share of one core, like the next three."""
    stub_share: float
    load_share: float
    other_share: float
    """Everything else on the machine."""
    problem: str = ""


def cases(sizes: Sequence[int], divisor: int) -> list[Case]:
    """Return all cases, with the number of requests divided by `divisor`."""
    plain = [
        Case(load, size, max(REQUEST_COUNTS[size][place] // divisor, 100), at_once)
        for size in sizes
        for place, (load, at_once) in enumerate(((Arrival.MANY, CONCURRENCY), (Arrival.ONE, 1)))
    ]
    streams = max(STREAM_COUNT // divisor, STREAM_CONCURRENCY)
    return [
        *plain,
        Case(Arrival.BURSTS, STREAM_BYTES, max(BURST_COUNT // divisor, 128), CONCURRENCY),
        Case(Arrival.STREAM, STREAM_BYTES, streams, STREAM_CONCURRENCY),
    ]


def measure(
    bench: Bench, running: Sequence[RunningProxy], loads: Sequence[Case], rounds: int
) -> Iterator[Measurement]:
    """Yield every cell; each round begins with a different proxy, for fairness."""
    for number in range(rounds):
        first = number % len(running)
        for case in loads:
            for proxy in (*running[first:], *running[:first]):
                fitting = case.slower() if proxy.slow else case
                job = fitting.job(proxy.port, number + 1, proxy.pids, bench.stub_pids)
                yield _cell(proxy.name, case, number, bench.run(job))


def _cell(name: str, case: Case, number: int, result: Result) -> Measurement:
    done, wall = max(result.done, 1), result.wall or 1.0
    ordered = sorted(result.latencies) or [0.0]
    return Measurement(
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
