"""The router from outside: its memory, its descriptors, and what it says of itself."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import NamedTuple
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.processes import cpu_seconds

#: A gauge of the tasks of its event loop, if the router has one.
TASKS = "warmroute_tasks"


class Sample(NamedTuple):
    """All its processes together at one moment."""

    at: float
    memory_mb: float
    descriptors: int
    cpu_s: float


class Gauges(NamedTuple):
    """What it says of itself."""

    in_flight: float
    booked_tokens: float
    waiting: float
    tasks: float | None
    """None: it does not say."""
    denied: float
    """Second attempts that its budget did not allow, since it began."""

    @property
    def idle(self) -> bool:
        """Nothing is booked, nobody waits."""
        return not (self.in_flight or self.booked_tokens or self.waiting)


def sample(pids: Sequence[int]) -> Sample:
    """Look at processes; one that has just ended counts nothing."""
    memory, descriptors, cpu = 0, 0, 0.0
    for pid in pids:
        with suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text()
            memory += int(status.partition("VmRSS:")[2].split()[0])
            descriptors += len(list(Path(f"/proc/{pid}/fd").iterdir()))
            cpu += cpu_seconds(pid)
    return Sample(monotonic(), memory / 1024, descriptors, cpu)


def gauges(port: int) -> Gauges:
    """Ask for the metrics. Raises OSError."""
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
