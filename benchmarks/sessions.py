"""The cost of many sessions: `python -m benchmarks.sessions`.

Fills a session table and prints its memory, the time to look up one session, and the time to sweep
expired sessions, which must grow with the number of expired sessions, not of all sessions.

Then measures what a session adds to a request: the CPU time of the router with and without, in
turns. The same requests go to the same router, in front of two stub workers that use next to no
CPU. One kind of requests names a session; every client uses one session after the other.
"""

import asyncio
import json
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from gc import collect, freeze
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter_ns
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.table import Table as Shown

from benchmarks.harness.processes import child, cpu_seconds
from benchmarks.harness.router import Router, router
from benchmarks.harness.stub import MODEL, StubSettings, serve
from router.sessions.ids import new_id
from router.sessions.table import Binding, SessionLease, Table

#: Kept connections, and requests that each sends in a session before it starts the next.
CONNECTIONS, SESSION_REQUESTS = 16, 10
_WORDS = "Why is the sky blue, and the sea, and what of the land? " * 5
_BODY = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": _WORDS}]}).encode()
TTL_S = 1200.0
#: Number of lookups, and rounds of each sweep.
LOOKUPS, ROUNDS = 50_000, 5


class PathCost(NamedTuple):
    """CPU microseconds of the router per request, medians over rounds."""

    without: float
    within: float

    @property
    def ratio(self) -> float:
        """Return the cost of a request in a session, as a multiple of the cost without."""
        return self.within / self.without


@contextmanager
def stage(redis: str | None = None) -> Iterator[Router]:
    """Run a router with strategy `session` over `leastload`, in front of two workers."""
    with (
        TemporaryDirectory() as folder,
        child(serve, StubSettings()) as (first, _),
        child(serve, StubSettings()) as (second, _),
    ):
        workers = [f"http://127.0.0.1:{channel.recv()}" for channel in (first, second)]
        session = {"redis": {"url": redis}} if redis else {}
        strategy = {"name": "session", "over": "leastload"}
        settings = {"workers": workers, "strategy": strategy, "session": session}
        with router(Path(folder), settings) as running:
            yield running


def path_cost(running: Router, requests: int, rounds: int) -> PathCost:
    """Send `requests` of each kind in every round; the kinds take turns at being first."""
    costs: dict[bool, list[float]] = {False: [], True: []}
    for number in range(rounds + 1):
        for named in (False, True) if number % 2 else (True, False):
            before = sum(map(cpu_seconds, running.pids))
            asyncio.run(_load(running.port, requests, named=named))
            spent = sum(map(cpu_seconds, running.pids)) - before
            if number:  # the first round, in which sessions and connections begin, is not counted
                costs[named].append(spent * 1e6 / requests)
    return PathCost(median(costs[False]), median(costs[True]))


async def _load(port: int, requests: int, *, named: bool) -> None:
    numbers = iter(range(requests))
    clients = range(CONNECTIONS)
    await asyncio.gather(*(_ask(port, client, numbers, named=named) for client in clients))


async def _ask(port: int, client: int, numbers: Iterator[int], *, named: bool) -> None:
    """Send requests one by one on a connection. Raises RuntimeError for an unexpected answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for turn, _ in enumerate(numbers):
        field = b"x-session-id: s-%d-%d\r\n" % (client, turn // SESSION_REQUESTS) if named else b""
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"%bcontent-length: %d\r\n\r\n%b" % (field, len(_BODY), _BODY)
        )
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if b" 200 " not in head[:15] or (b"x-warmroute-session" in head) is not named:
            raise RuntimeError(f"an answer that was not expected: {head[:200]!r}")
        await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r")[0]))
    writer.close()
    await writer.wait_closed()


class Sweep(NamedTuple):
    """One kind of sweep, the median over rounds."""

    open: int
    used: int
    """Sessions among them whose end was moved by use (sliding expiry)."""
    expired: int
    milliseconds: float


def filled(sessions: int, expiring: int = 0, *, sliding: bool = False) -> tuple[Table, list[str]]:
    """Make a table whose first `expiring` sessions begin, and end, a second before the others."""
    table = Table(SessionLease(ttl=TTL_S, most=sessions, sliding=sliding))
    names = [new_id() for _ in range(sessions)]
    for place, name in enumerate(names):
        table.bind(name, Binding("worker-1"), None, 0.0 if place < expiring else 1.0)
    return table, names


def bytes_of(sessions: int) -> tuple[float, float]:
    """Return the bytes per session: of the table alone, and including the ids."""
    names = [new_id() for _ in range(sessions)]
    collect()
    tracemalloc.start()
    table = Table(SessionLease(ttl=TTL_S, most=sessions))
    for name in names:
        table.bind(name, Binding("worker-1"), None, 0.0)
    alone = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    of_ids = sum(49 + len(name) for name in names)  # size of an ASCII str in CPython
    return alone / len(table), (alone + of_ids) / len(table)


def lookups(sessions: int) -> list[float]:
    """Return microseconds of single uses spread over the table, sorted."""
    table, names = filled(sessions)
    times = []
    for number in range(LOOKUPS):
        name = names[number * 7919 % sessions]
        began = perf_counter_ns()
        table.use(name, 2.0)
        times.append((perf_counter_ns() - began) / 1000)
    return sorted(times)


def evictions(sessions: int) -> float:
    """Return the mean microseconds to add a session to a full table, which evicts another."""
    table, _ = filled(sessions)
    names = [new_id() for _ in range(LOOKUPS // 5)]
    began = perf_counter_ns()
    for name in names:
        table.bind(name, Binding("worker-1"), None, 2.0)
    return (perf_counter_ns() - began) / 1000 / len(names)


def sweep(sessions: int, expiring: int, *, used: bool = False) -> Sweep:
    """Sweep a table of `sessions` sessions, of which `expiring` have expired.

    With `used`, all of them were used before, so that sliding expiry has moved their ends.
    """
    times = []
    for _ in range(ROUNDS):
        table, names = filled(sessions, expiring, sliding=used)
        for name in names if used else ():
            table.use(name, TTL_S - 1)
        freeze()
        began = perf_counter_ns()
        now = TTL_S + (2 if used else 0.5)
        dropped = table.sweep(now)
        while dropped < expiring and table.due(now):  # one sweep drops a limited number
            dropped += table.sweep(now)
        times.append((perf_counter_ns() - began) / 1e6)
        if dropped != expiring:
            raise RuntimeError(f"{dropped} were swept instead of {expiring}")
    return Sweep(sessions, sessions if used else 0, expiring, median(times))


def main(
    sessions: Annotated[int, typer.Option(min=1000, help="Sessions open at once.")] = 100_000,
    requests: Annotated[int, typer.Option(min=100, help="Requests of each kind a round.")] = 4000,
    redis: Annotated[
        str | None, typer.Option(help="redis://HOST:PORT: sessions on the way are kept there.")
    ] = None,
) -> None:
    """Print the tables."""
    out = Console(highlight=False)
    table_bytes, all_bytes = bytes_of(sessions)
    lookup_us = lookups(sessions)
    shown = Shown("sessions", "bytes each", "with its id", "use p50 µs", "p99 µs", "new, full µs")
    half, most = lookup_us[len(lookup_us) // 2], lookup_us[len(lookup_us) * 99 // 100]
    numbers = (table_bytes, all_bytes, half, most, evictions(sessions))
    shown.add_row(f"{sessions:,}", *(f"{number:.3g}" for number in numbers))
    out.print(shown)
    sweeps = Shown("open", "used", "expired", "sweep ms", "µs each")
    for count in (sessions // 10, sessions):
        expiring = [sweep(count, expired) for expired in (0, sessions // 100, sessions // 10)]
        for swept in (*expiring, sweep(count, 0, used=True)):
            each = f"{swept.milliseconds * 1000 / swept.expired:.2f}" if swept.expired else "-"
            counts = (f"{count:,}" for count in (swept.open, swept.used, swept.expired))
            sweeps.add_row(*counts, f"{swept.milliseconds:.3f}", each)
    out.print(sweeps)
    with stage(redis) as running:
        cost = path_cost(running, requests, 2 * ROUNDS)
    path = Shown("a request of the router's, CPU µs", "without", "in a session", "ratio")
    path.add_row("", f"{cost.without:.0f}", f"{cost.within:.0f}", f"{cost.ratio:.2f}")
    out.print(path)


if __name__ == "__main__":
    typer.run(main)
