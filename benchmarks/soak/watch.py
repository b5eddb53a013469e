"""The router seen from outside: its memory, CPU time, descriptors and metrics."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.harness.processes import cpu_seconds

#: States of a socket in /proc/net/tcp (`TCP_ESTABLISHED` and `TCP_LISTEN` of tcp_states.h).
_ESTABLISHED, _LISTENS = "01", "0A"
#: A gauge of the tasks of its event loop, if the router has one.
TASKS = "warmroute_tasks"


class Sample(NamedTuple):
    """The sum over all processes of the router at one moment."""

    at: float
    memory_mb: float
    descriptors: int
    cpu_s: float


class Gauges(NamedTuple):
    """Values from the router's metrics."""

    in_flight: float
    booked_tokens: float
    waiting: float
    tasks: float | None
    """Asyncio tasks; None if the router does not report them."""
    denied: float
    """Retries since the start that the retry budget did not allow."""

    @property
    def idle(self) -> bool:
        """Whether nothing is booked and no request waits."""
        return not (self.in_flight or self.booked_tokens or self.waiting)


class Look(NamedTuple):
    """The router's state at one moment."""

    sample: Sample
    said: Gauges
    ends: Counter[str]
    """Counts of its descriptors by kind."""

    def data(self) -> dict[str, Any]:
        """Return it as JSON-compatible data."""
        return {**self.sample._asdict(), **self.said._asdict(), "ends": self.ends}

    def nothing_more(self, before: "Look") -> bool:
        """Whether it is idle, with no more descriptors and tasks than before."""
        return (
            self.said.idle
            and self.sample.descriptors <= before.sample.descriptors
            and (self.said.tasks or 0) <= (before.said.tasks or 0)
        )


def sample(pids: Sequence[int]) -> Sample:
    """Sample processes; one that has just ended counts nothing."""
    memory, descriptors, cpu = 0, 0, 0.0
    for pid in pids:
        with suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text()
            memory += int(status.partition("VmRSS:")[2].split()[0])
            descriptors += len(list(Path(f"/proc/{pid}/fd").iterdir()))
            cpu += cpu_seconds(pid)
    return Sample(monotonic(), memory / 1024, descriptors, cpu)


def open_ends(pids: Sequence[int], names: Mapping[int, str]) -> Counter[str]:
    """Count the descriptors of processes by kind; `names` maps ports to names."""
    found: Counter[str] = Counter()
    for pid in pids:
        with suppress(OSError):
            sockets = _sockets(Path(f"/proc/{pid}/net/tcp").read_text(), names)
            for link in Path(f"/proc/{pid}/fd").iterdir():
                target = str(link.readlink())
                found[sockets.get(target, target.partition(":")[0])] += 1
    return found


def _sockets(table: str, names: Mapping[int, str]) -> dict[str, str]:
    """Parse the kernel's TCP table: a description for each socket, by its link target."""
    found = {}
    for line in table.splitlines()[1:]:
        fields = line.split()
        here, there = (int(field.partition(":")[2], 16) for field in fields[1:3])
        peer = names.get(there) or f"a client of {names.get(here, here)}"
        state = "" if fields[3] == _ESTABLISHED else f", state {int(fields[3], 16)}"
        name = f"listens at {names.get(here, here)}" if fields[3] == _LISTENS else peer + state
        found[f"socket:[{fields[9]}]"] = name
    return found


def gauges(port: int) -> Gauges:
    """Fetch the metrics, summed over labels. Raises OSError."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
        text = reply.read().decode()
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            sums[one.name] = sums.get(one.name, 0.0) + one.value
    return Gauges(
        sums.get("warmroute_in_flight", 0.0),
        sums.get("warmroute_kv_tokens_booked", 0.0),
        sums.get("warmroute_queue_length", 0.0),
        sums.get(TASKS),
        sums.get("warmroute_retries_denied_total", 0.0),
    )
