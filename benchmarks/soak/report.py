"""The results of a soak, as a table, as a verdict and as JSON."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from benchmarks.soak.fleet import InjectedFault
from benchmarks.soak.judge import (
    NEVER,
    End,
    Failure,
    SoakTally,
    Twice,
    after_warm_up,
    by_cause,
    slope,
)
from benchmarks.soak.run import ProcessSample, State

#: Memory growth that counts as a problem, in MB a minute.
MAX_GROWTH_MB = 1.0


@dataclass(slots=True)
class SoakReport:
    """Everything measured in one soak."""

    minutes: float
    tally: SoakTally
    lost: Sequence[Failure]
    twice: Sequence[Twice]
    faults: Sequence[tuple[float, InjectedFault]]
    reloads: int
    load_share: float
    machine_share: float
    samples: Sequence[ProcessSample]
    tasks: Sequence[tuple[float, float]]
    """Times and numbers of asyncio tasks."""
    before: State
    after: State
    complaints: Sequence[str]
    """Lines of the router's log that report internal errors."""
    exit_code: int

    @property
    def asked_twice(self) -> list[Twice]:
        """Return the requests whose first worker was still alive."""
        return [request for request in self.twice if not request.died]

    @property
    def memory_growth(self) -> float:
        """Return the memory growth in MB a minute, after the first quarter."""
        return 60 * slope(after_warm_up([(sample.at, sample.memory_mb) for sample in self.samples]))

    @property
    def descriptor_growth(self) -> float:
        """Growth in descriptors a minute, after the first quarter."""
        return 60 * slope(after_warm_up([(s.at, float(s.descriptors)) for s in self.samples]))

    @property
    def task_growth(self) -> float:
        """Growth in tasks a minute, after the first quarter."""
        return 60 * slope(after_warm_up(self.tasks))

    @property
    def router_share(self) -> float:
        """Return the CPU use of the router as a share of a core, after the first quarter."""
        used = after_warm_up([(sample.at, sample.cpu_s) for sample in self.samples])
        return slope(used)

    def problems(self) -> list[str]:
        """Describe what is wrong with the router, a sentence each; empty if all is well."""
        sentences = {
            f"memory grows by {self.memory_growth:.2f} MB a minute": (
                self.memory_growth >= MAX_GROWTH_MB
            ),
            f"{len(self.lost)} requests were lost that could have been saved": self.lost,
            f"{len(self.asked_twice)} requests were asked of two workers": self.asked_twice,
            f"{len(self.complaints)} lines of its log tell of faults of its own": self.complaints,
            f"it did not end as it should: exit code {self.exit_code}": self.exit_code,
        }
        for end in NEVER:
            sentences[f"{self._of(end)} requests: {end.value}"] = self._of(end)
        return [*(sentence for sentence, holds in sentences.items() if holds), *self._left()]

    def _left(self) -> list[str]:
        """Describe what the router has not released since before the load."""
        before, after = self.before, self.after
        problems = []
        if after.sample.descriptors > before.sample.descriptors:
            more = ", ".join(f"{count} {end}" for end, count in (after.ends - before.ends).items())
            problems.append(f"descriptors are left open: {more}")
        if after.gauges.tasks > before.gauges.tasks:
            change = f"{before.gauges.tasks:.0f} before, {after.gauges.tasks:.0f} after"
            problems.append(f"tasks are left: {change}")
        if not after.gauges.idle:
            problems.append(f"something is booked although nothing is done: {after.gauges}")
        return problems

    def table(self) -> Table:
        """Return a table of how requests ended, by kind of client."""
        shown = [end for end in End if any(ended is end for _, ended in self.tally.ends)]
        table = Table(title="Requests by kind and end", title_justify="left")
        table.add_column("")
        for end in shown:
            table.add_column(end.value, justify="right", max_width=14)
        kinds = sorted({kind for kind, _ in self.tally.ends})
        for kind in kinds:
            table.add_row(kind, *(_number(self.tally.ends.get((kind, end), 0)) for end in shown))
        table.add_section()
        table.add_row("all", *(_number(self._of(end)) for end in shown))
        return table

    def _of(self, end: End) -> int:
        return sum(count for (_, ended), count in self.tally.ends.items() if ended is end)

    def lines(self) -> list[str]:
        """Return all other results as lines of text."""
        first, last, left = self.before.sample, self.after.sample, self.after.gauges
        requests = sum(self.tally.ends.values())
        kinds = Counter(act.kind for _, act in self.faults)
        again = len(self.twice) - len(self.asked_twice)
        lines = [
            f"{requests:,} requests in {self.minutes:g} minutes, {self.tally.held_back:,} held"
            f" back; the router used {self.router_share:.0%} of a core, the clients"
            f" {self.load_share:.0%}, everything on this machine {self.machine_share:.0%}",
            "faults: "
            + ", ".join(f"{kind} {count}" for kind, count in kinds.items())
            + f"; {self.reloads} reloads",
            f"lost that could have been saved: {len(self.lost)};"
            f" asked twice: {len(self.asked_twice)};"
            f" asked again after the worker that had read it was killed: {again}",
            f"memory: {first.memory_mb:.1f} MB before, {last.memory_mb:.1f} MB after,"
            f" {self.memory_growth:+.2f} MB a minute after warm-up",
            f"descriptors: {first.descriptors} before, {last.descriptors} after,"
            f" {self.descriptor_growth:+.2f} a minute after warm-up",
            f"tasks: {self.before.gauges.tasks:.0f} before, {left.tasks:.0f} after,"
            f" {self.task_growth:+.2f} a minute after warm-up",
            f"booked at the end: {left.in_flight:.0f} requests, {left.booked_tokens:.0f} tokens,"
            f" {left.waiting:.0f} waiting; retries that the budget denied: {left.denied:.0f}",
        ]
        for title, failures in (("lost", self.lost), ("failed", self.tally.failures)):
            lines += [
                f"{title}: {count:,} times {cause}" for cause, count in by_cause(failures).items()
            ]
        worst = self.tally.violations[:20]
        lines += [f"{end.value}: {kind}: {message}" for kind, end, message in worst]
        lines += [f"log: {line}" for line in self.complaints[:20]]
        return lines

    def data(self) -> dict[str, Any]:
        """Return the report as JSON-compatible data."""
        ends: Counter[str] = Counter()
        for (_, end), count in self.tally.ends.items():
            ends[end.name.lower()] += count
        start = self.samples[0].at if self.samples else 0.0
        return {
            "minutes": self.minutes,
            "ends": ends,
            "by_kind": {
                f"{kind}: {end.name.lower()}": n for (kind, end), n in self.tally.ends.items()
            },
            "lost": [request._asdict() for request in self.lost],
            "asked_twice": [request._asdict() for request in self.twice],
            "failures": by_cause(self.tally.failures),
            "violations": [request._asdict() for request in self.tally.violations],
            "faults": [(at, *act) for at, act in self.faults],
            "reloads": self.reloads,
            "memory_mb_a_minute": self.memory_growth,
            "descriptors_a_minute": self.descriptor_growth,
            "tasks_a_minute": self.task_growth,
            "router_share": self.router_share,
            "before": self.before.data(),
            "after": self.after.data(),
            "samples": [
                (round(s.at - start, 1), round(s.memory_mb, 1), s.descriptors) for s in self.samples
            ],
            "log": list(self.complaints),
            "exit_code": self.exit_code,
            "problems": self.problems(),
        }


def _number(count: int) -> str:
    return f"{count:,}" if count else ""


def complaints(log: str) -> list[str]:
    """Return the lines of a router's log that report internal errors."""
    signs = ("Traceback", "fault of the router", "never retrieved", "never awaited", "Error:")
    return [line for line in log.splitlines() if any(sign in line for sign in signs)]
