"""The tables of the overhead benchmark: medians over rounds, and our ratios to the best peer."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.table import Table

from benchmarks.harness.bench import RunningProxy
from benchmarks.harness.proxies import BEFORE, Group
from benchmarks.overhead.cells import Arrival, Measurement

OURS = "warmroute"
#: Above this share of a core, the load generator or a worker limits the result.
MAX_SHARE = 0.9
#: Shown in place of a missing number.
MISSING = "-"


@dataclass(frozen=True, slots=True)
class Grid:
    """One table, for a terminal or a document."""

    title: str
    headings: Sequence[str]
    sections: Sequence[Sequence[Sequence[str]]]
    """Rows, in groups."""

    def rich(self) -> Table:
        """Return it for a terminal."""
        table = Table(title=self.title, title_justify="left")
        for number, heading in enumerate(self.headings):
            table.add_column(heading, justify="right" if number else "left", no_wrap=True)
        for rows in self.sections:
            for row in rows:
                table.add_row(*row)
            table.add_section()
        return table

    def markdown(self) -> str:
        """Return it for a document."""
        rule = ["---", *["---:"] * (len(self.headings) - 1)]
        rows = [row for section in self.sections for row in section]
        lines = [f"| {' | '.join(row)} |" for row in (self.headings, rule, *rows)]
        return f"**{self.title}**\n\n" + "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: a value for each proxy."""

    heading: str
    value: Callable[[RunningProxy], float | None]
    more_is_better: bool = False


class OverheadReport:
    """Everything measured in one run, as tables and notes."""

    def __init__(
        self, cells: Sequence[Measurement], running: Sequence[RunningProxy], memory: dict[str, int]
    ) -> None:
        self._cells = cells
        self._standing = running
        self._memory = memory
        self._sizes = sorted({cell.size for cell in cells if cell.load is Arrival.MANY})

    def grids(self) -> list[Grid]:
        """Return every table."""
        cpu = [Column(_kilo(size), self._cpu(Arrival.MANY, size)) for size in self._sizes]
        for load, name in ((Arrival.BURSTS, "stream"), (Arrival.STREAM, "paced stream")):
            streams = [cell.size for cell in self._cells if cell.load is load]
            if streams:
                cpu.append(Column(name, self._cpu(load, streams[0])))
        grids = [
            self._grid(
                "CPU µs of the proxy for a request, and for a stream of 100 events: ten at a time,"
                " and one event after the other",
                cpu,
                with_direct=False,
            )
        ]
        for load in (Arrival.ONE, Arrival.MANY):
            for name in ("p50", "p99"):
                added = [Column(_kilo(size), self._added(load, size, name)) for size in self._sizes]
                title = f"Latency added, µs, {load}, {name}"
                grids.append(self._grid(title, added, with_direct=False))
        rates = [Column(_kilo(size), self._rate(size), True) for size in self._sizes]
        grids.append(self._grid(f"Requests a second, {Arrival.MANY}", rates, with_direct=True))
        memory = [
            Column("at rest", lambda proxy: proxy.rest_bytes / 1e6),
            Column("after the load", lambda proxy: self._memory[proxy.name] / 1e6),
        ]
        grids.append(self._grid("Memory, MB", memory, with_direct=False))
        return grids

    def notes(self) -> list[str]:
        """Return how busy load generator, workers and machine were, and everything that failed."""
        measured = [cell for cell in self._cells if not cell.problem and cell.proxy != "direct"]
        notes = [
            f"Machinery, most of one core: {_most(measured, 'load generator')},"
            f" {_most(measured, 'worker')}."
        ]
        others = [cell.other_share for cell in measured] or [0.0]
        notes.append(
            f"Everything else on the machine took {statistics.median(others):.0%} of a core"
            f" (median), {max(others):.0%} at most; above some 10% latencies say little."
        )
        swamped = sorted(
            {
                cell.proxy
                for cell in measured
                if cell.load is Arrival.STREAM and cell.proxy_share > MAX_SHARE
            }
        )
        if swamped:
            notes.append(
                f"{', '.join(swamped)}: busy all the time with the streams, so that several events"
                " were read at once; one by one costs more."
            )
        problems = {
            f"{cell.proxy}, {cell.load}, {_kilo(cell.size)}: {cell.problem}"
            for cell in self._cells
            if cell.problem
        }
        return [*notes, *(f"FAILED {problem}" for problem in sorted(problems))]

    def _grid(self, title: str, columns: Sequence[Column], *, with_direct: bool) -> Grid:
        groups = [None, *Group] if with_direct else list(Group)
        sections = [
            [
                [proxy.name, *(_number(column.value(proxy)) for column in columns)]
                for proxy in self._standing
                if proxy.group is group
            ]
            for group in groups
        ]
        ours = [proxy for proxy in self._standing if proxy.name.startswith(OURS)]
        sections += [self._ratios(proxy, columns) for proxy in ours]
        filled = [section for section in sections if section]
        return Grid(title, ["", *(column.heading for column in columns)], filled)

    def _ratios(self, ours: RunningProxy, columns: Sequence[Column]) -> list[list[str]]:
        alike = [
            proxy
            for proxy in self._standing
            if proxy.group is ours.group and not proxy.name.startswith(OURS)
        ]
        before = [proxy for proxy in alike if proxy.name.startswith(BEFORE)]
        peers = [proxy for proxy in alike if proxy not in before]
        floor = [proxy for proxy in self._standing if proxy.group is Group.FLOOR]
        mode = ours.name.removeprefix(OURS).strip()
        return [
            [f"{mode} / {name}", *(_ratio(column, ours, others) for column in columns)]
            for name, others in (("best peer", peers), ("nginx", floor), (BEFORE, before))
            if others
        ]

    def _cpu(self, load: Arrival, size: int) -> Callable[[RunningProxy], float | None]:
        return lambda proxy: self._median(proxy.name, load, size, lambda cell: cell.cpu_us)

    def _rate(self, size: int) -> Callable[[RunningProxy], float | None]:
        return lambda proxy: self._median(proxy.name, Arrival.MANY, size, lambda cell: cell.rate)

    def _added(self, load: Arrival, size: int, name: str) -> Callable[[RunningProxy], float | None]:
        def value(cell: Measurement) -> float:
            return cell.p50_us if name == "p50" else cell.p99_us

        def added(proxy: RunningProxy) -> float | None:
            through = self._median(proxy.name, load, size, value)
            direct = self._median("direct", load, size, value)
            return None if through is None or direct is None else through - direct

        return added

    def _median(
        self, name: str, load: Arrival, size: int, value: Callable[[Measurement], float]
    ) -> float | None:
        values = [
            value(cell)
            for cell in self._cells
            if (cell.proxy, cell.load, cell.size) == (name, load, size) and not cell.problem
        ]
        return statistics.median(values) if values else None


def _most(cells: Sequence[Measurement], who: str) -> str:
    """Describe the cell in which the load generator or a worker (`who`) was busiest."""
    if not cells:
        return f"{who} {MISSING}"

    def share(cell: Measurement) -> float:
        return cell.load_share if who == "load generator" else cell.stub_share

    most = max(cells, key=share)
    warning = " WARNING: it limits that rate" if share(most) > MAX_SHARE else ""
    return f"{who} {share(most):.0%} ({most.proxy}, {most.load}, {_kilo(most.size)}){warning}"


def _ratio(column: Column, ours: RunningProxy, others: Sequence[RunningProxy]) -> str:
    values = [value for proxy in others if (value := column.value(proxy)) is not None]
    own = column.value(ours)
    if own is None or not values:
        return MISSING
    best = max(values) if column.more_is_better else min(values)
    return f"{own / best:.2f}x" if best > 0 else MISSING


def _number(value: float | None) -> str:
    if value is None:
        return MISSING
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}"


def _kilo(size: int) -> str:
    return f"{size / 1000:g} kB"
