"""The results of the seeds benchmark as Markdown: a row per cell, and the published goals."""

from collections.abc import Iterator, Sequence

from benchmarks.seeds.cells import SeedResult
from benchmarks.seeds.workloads import Seed

_COLUMNS = (
    *("", "strategy", "tiers", "TTFT P50", "P90", "tokens/s", "cost"),
    *("hit GPU", "L1", "L2", "in all, of what can be had", "share of a replica"),
)


def lines(seed: Seed, population: int, bound: float, cells: Sequence[SeedResult]) -> Iterator[str]:
    """Yield the table of one workload; changes are relative to the first cell."""
    base = cells[0]
    yield (
        f"**{seed.name}**, simulated: {seed.description}; {_drawn(population)}; "
        f"one infinite cache would hit {bound:.1%}"
    )
    yield ""
    yield _row(_COLUMNS)
    yield "|" + "---|" * len(_COLUMNS)
    yield _row(("published", *("",) * 2, *_published(seed)))
    for result in cells:
        yield _row(("simulated", result.router, result.setup, *_numbers(result, base, bound)))
    yield ""


def _drawn(population: int) -> str:
    if population >= 1 << 20:
        return "every one new, for even so the baseline hits as much"
    return f"{population} of them"


def _published(seed: Seed) -> Sequence[str]:
    hit = f"{seed.hit:.0%}" if seed.hit else ""
    share = f"{seed.share[0]:.1%} to {seed.share[1]:.1%}" if seed.share else ""
    changes = (seed.p50, seed.p90, seed.throughput, seed.cost)
    changes_shown = ["" if change is None else f"{change:+.0%}" for change in changes]
    return (*changes_shown, "", "", "", hit, share)


def _numbers(result: SeedResult, base: SeedResult, bound: float) -> Sequence[str]:
    def beside(value: float, before: float, shown: str) -> str:
        return shown if result is base else f"{shown} ({value / before - 1.0:+.0%})"

    return (
        beside(result.p50_s, base.p50_s, f"{result.p50_s:.3f} s"),
        beside(result.p90_s, base.p90_s, f"{result.p90_s:.3f} s"),
        beside(result.throughput, base.throughput, f"{result.throughput:,.0f}"),
        beside(result.cost, base.cost, f"{result.cost:.2f} h"),
        *(f"{part:.1%}" for part in (result.gpu, result.l1, result.l2)),
        f"{result.hit:.1%} of {bound:.1%}",
        f"{result.least_share:.1%} to {result.most_share:.1%}",
    )


def verdicts(seed: Seed, bound: float, cells: Sequence[SeedResult]) -> Iterator[str]:
    """Yield whether each cell of a cache-aware strategy meets the published numbers.

    Cells with and without L1 and L2 are compared with the same numbers, although AWS's first
    report used both tiers and the second GPU caches only. Cells with Redis are left out.
    """
    base = cells[0]
    for result in cells:
        if result.router not in {"prefixaware", "kvaware"} or "Redis" in result.setup:
            continue
        missed = [name for name, met in _goals(seed, bound, result, base) if not met]
        verdict = (
            f"misses {', '.join(missed)}" if missed else "meets or beats all that is published"
        )
        yield f"- simulated, {seed.name}: {result.router} with {result.setup} {verdict}"


def _goals(
    seed: Seed, bound: float, result: SeedResult, base: SeedResult
) -> Iterator[tuple[str, bool]]:
    """Yield each published number with whether it is met, rounded as published where absolute."""
    yield "TTFT P50", result.p50_s / base.p50_s - 1.0 <= seed.p50
    yield "TTFT P90", result.p90_s / base.p90_s - 1.0 <= seed.p90
    if seed.throughput is not None:
        yield "throughput", result.throughput / base.throughput - 1.0 >= seed.throughput
    if seed.cost is not None:
        yield "cost", result.cost / base.cost - 1.0 <= seed.cost
    if seed.hit is not None:
        yield (
            f"hit rate ({result.hit:.1%} of {bound:.1%} that can be had)",
            round(result.hit, 2) >= seed.hit,
        )
    if seed.share is not None:
        least, most = seed.share
        within = round(result.least_share, 3) >= least and round(result.most_share, 3) <= most
        yield "share of a replica", within


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
