"""The results of a soak, as a table, as a verdict and as JSON."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from benchmarks.soak.fleet import Act
from benchmarks.soak.judge import NEVER, End, Failure, Tally, Twice, after_warm_up, by_cause, slope
from benchmarks.soak.run import TASKS, Look, Sample

#: Memory growth that counts as a problem, in MB a minute.
MAX_GROWTH_MB = 1.0


@dataclass(slots=True)
class Report:
    """Everything measured in one soak."""

    minutes: float
    tally: Tally
    lost: Sequence[Failure]
    twice: Sequence[Twice]
    faults: Sequence[tuple[float, Act]]
    reloads: int
    load_share: float
    machine_share: float
    samples: Sequence[Sample]
    tasks: Sequence[tuple[float, float]]
    """Times and numbers of asyncio tasks; empty if the router does not report them."""
    before: Look
    after: Look
    complaints: Sequence[str]
    """Lines of the router's log that report internal errors."""
    exit_code: int

    @property
    def asked_twice(self) -> list[Twice]:
        """The requests whose first worker was still alive."""
        return [one for one in self.twice if not one.died]

    @property
    def memory_growth(self) -> float:
        """Memory growth in MB a minute, after the first quarter."""
        return 60 * slope(after_warm_up([(one.at, one.memory_mb) for one in self.samples]))

    @property
    def descriptor_growth(self) -> float:
        """Growth in descriptors a minute, after the first quarter."""
        return 60 * slope(after_warm_up([(s.at, float(s.descriptors)) for s in self.samples]))

    @property
    def task_growth(self) -> float | None:
        """Growth in tasks a minute, after the first quarter; None if not reported."""
        return 60 * slope(after_warm_up(self.tasks)) if self.tasks else None

    @property
    def router_share(self) -> float:
        """CPU use of the router as a share of a core, after the first quarter."""
        used = after_warm_up([(one.at, one.cpu_s) for one in self.samples])
        return slope(used)

    def problems(self) -> list[str]:
        """Describe what is wrong with the router, a sentence each; empty if all is well."""
        found = {
            f"memory grows by {self.memory_growth:.2f} MB a minute": (
                self.memory_growth >= MAX_GROWTH_MB
            ),
            f"{len(self.lost)} requests were lost that could have been saved": self.lost,
            f"{len(self.asked_twice)} requests were asked of two workers": self.asked_twice,
            f"{len(self.complaints)} lines of its log tell of faults of its own": self.complaints,
            f"it did not end as it should: exit code {self.exit_code}": self.exit_code,
        }
        for end in NEVER:
            found[f"{self._of(end)} requests: {end.value}"] = self._of(end)
        return [*(says for says, is_so in found.items() if is_so), *self._left()]

    def _left(self) -> list[str]:
        """Describe what the router has not released since before the load."""
        before, after = self.before, self.after
        found = []
        if after.sample.descriptors > before.sample.descriptors:
            more = ", ".join(f"{count} {end}" for end, count in (after.ends - before.ends).items())
            found.append(f"descriptors are left open: {more}")
        if before.said.tasks is not None and (after.said.tasks or 0) > before.said.tasks:
            change = f"{before.said.tasks:.0f} before, {after.said.tasks or 0:.0f} after"
            found.append(f"tasks are left: {change}")
        if not after.said.idle:
            found.append(f"something is booked although nothing is done: {after.said}")
        return found

    def table(self) -> Table:
        """Return a table of how requests ended, by kind of client."""
        shown = [end for end in End if any(one is end for _, one in self.tally.ends)]
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
        return sum(count for (_, one), count in self.tally.ends.items() if one is end)

    def lines(self) -> list[str]:
        """Return all other results as lines of text."""
        first, last = self.before.sample, self.after.sample
        asked = sum(self.tally.ends.values())
        kinds = Counter(act.kind for _, act in self.faults)
        again = len(self.twice) - len(self.asked_twice)
        lines = [
            f"{asked:,} requests in {self.minutes:g} minutes, {self.tally.held_back:,} held back;"
            f" the router used {self.router_share:.0%} of a core, the clients"
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
            self._tasks(),
            f"booked at the end: {self.after.said.in_flight:.0f} requests,"
            f" {self.after.said.booked_tokens:.0f} tokens, {self.after.said.waiting:.0f} waiting;"
            f" retries that the budget denied: {self.after.said.denied:.0f}",
        ]
        for title, some in (("lost", self.lost), ("failed", self.tally.failures)):
            lines += [
                f"{title}: {count:,} times {cause}" for cause, count in by_cause(some).items()
            ]
        lines += [f"{odd.end.value}: {odd.kind}: {odd.says}" for odd in self.tally.odd[:20]]
        lines += [f"log: {line}" for line in self.complaints[:20]]
        return lines

    def _tasks(self) -> str:
        growth = self.task_growth
        if growth is None:
            return f"tasks: the router has no gauge {TASKS}"
        before, after = self.before.said.tasks, self.after.said.tasks
        return f"tasks: {before:.0f} before, {after:.0f} after, {growth:+.2f} a minute"

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
            "lost": [one._asdict() for one in self.lost],
            "asked_twice": [one._asdict() for one in self.twice],
            "failures": by_cause(self.tally.failures),
            "odd": [one._asdict() for one in self.tally.odd],
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
