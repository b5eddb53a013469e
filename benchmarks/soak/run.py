"""The course of a soak: what happens when, and the router seen from outside meanwhile.

Its memory, CPU time and descriptors are read from the kernel, the rest from its metrics.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from benchmarks.harness.processes import cpu_seconds, machine_seconds
from benchmarks.harness.router import Router
from benchmarks.soak.clients import CLIENT_TIMEOUT_S
from benchmarks.soak.fleet import Workers
from benchmarks.soak.judge import FAILED, NEVER, End, SoakTally
from benchmarks.soak.requests import MAX_BODY_BYTES

#: States of a socket in /proc/net/tcp (`TCP_ESTABLISHED` and `TCP_LISTEN` of tcp_states.h).
_ESTABLISHED, _LISTENS = "01", "0A"
#: Seconds between two checks of the workers; samples of the router; adjustments of the load; reads
#: of the router's metrics.
TICK_INTERVAL_S, _SAMPLE_INTERVAL_S, _STEER_INTERVAL_S, _METRICS_INTERVAL_S = 0.1, 1.0, 5.0, 10.0
#: Seconds between two progress lines.
_PROGRESS_INTERVAL_S = 30.0
#: Seconds between two changes of the settings.
_RELOAD_INTERVAL_S = 20.0
#: Seconds after the load until the router must have released everything.
_RELEASE_TIMEOUT_S = 30.0
#: Clients a second at first, and at most.
_FIRST_RATE, _MAX_RATE = 300.0, 5000.0
#: Fewest clients from which the cost of one is estimated.
_MIN_CLIENTS = 200
#: Load during warm-up relative to the rest, so that memory reaches its peak during warm-up.
_WARM_UP_LOAD = 1.2
#: Time limit for the load to end; its clients wait up to `CLIENT_TIMEOUT_S`.
_END_TIMEOUT_S = CLIENT_TIMEOUT_S + 30.0
_err = Console(stderr=True, highlight=False, soft_wrap=True)


class ProcessSample(NamedTuple):
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
    tasks: float
    """Asyncio tasks."""
    denied: float
    """Retries since the start that the retry budget did not allow."""

    @property
    def idle(self) -> bool:
        """Return true if nothing is booked and no request waits."""
        return not (self.in_flight or self.booked_tokens or self.waiting)


class State(NamedTuple):
    """The router's state at one moment."""

    sample: ProcessSample
    gauges: Gauges
    ends: Counter[str]
    """Counts of its descriptors by kind."""

    def data(self) -> dict[str, Any]:
        """Return it as JSON-compatible data."""
        return {**self.sample._asdict(), **self.gauges._asdict(), "ends": self.ends}

    def nothing_more(self, before: "State") -> bool:
        """Return true if it is idle, with no more descriptors and tasks than before."""
        return (
            self.gauges.idle
            and self.sample.descriptors <= before.sample.descriptors
            and self.gauges.tasks <= before.gauges.tasks
        )


def sample(pids: Sequence[int]) -> ProcessSample:
    """Sample processes; one that has just ended counts nothing."""
    memory, descriptors, cpu = 0, 0, 0.0
    for pid in pids:
        with suppress(OSError):
            status = Path(f"/proc/{pid}/status").read_text()
            memory += int(status.partition("VmRSS:")[2].split()[0])
            descriptors += len(list(Path(f"/proc/{pid}/fd").iterdir()))
            cpu += cpu_seconds(pid)
    return ProcessSample(monotonic(), memory / 1024, descriptors, cpu)


def open_ends(pids: Sequence[int], names: Mapping[int, str]) -> Counter[str]:
    """Count the descriptors of processes by kind; `names` maps ports to names."""
    ends: Counter[str] = Counter()
    for pid in pids:
        with suppress(OSError):
            sockets = _sockets(Path(f"/proc/{pid}/net/tcp").read_text(), names)
            for link in Path(f"/proc/{pid}/fd").iterdir():
                target = str(link.readlink())
                ends[sockets.get(target, target.partition(":")[0])] += 1
    return ends


def _sockets(table: str, names: Mapping[int, str]) -> dict[str, str]:
    """Parse the kernel's TCP table: a description for each socket, by its link target."""
    names_of = {}
    for line in table.splitlines()[1:]:
        fields = line.split()
        here, there = (int(field.partition(":")[2], 16) for field in fields[1:3])
        peer = names.get(there) or f"a client of {names.get(here, here)}"
        state = "" if fields[3] == _ESTABLISHED else f", state {int(fields[3], 16)}"
        name = f"listens at {names.get(here, here)}" if fields[3] == _LISTENS else peer + state
        names_of[f"socket:[{fields[9]}]"] = name
    return names_of


def gauges(port: int) -> Gauges:
    """Fetch the metrics, summed over labels. Raises OSError."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
        text = reply.read().decode()
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for metric in family.samples:
            sums[metric.name] = sums.get(metric.name, 0.0) + metric.value
    return Gauges(
        sums.get("warmroute_in_flight", 0.0),
        sums.get("warmroute_kv_tokens_booked", 0.0),
        sums.get("warmroute_queue_length", 0.0),
        sums.get("warmroute_tasks", 0.0),
        sums.get("warmroute_retries_denied_total", 0.0),
    )


class Broken(Exception):
    """The router, a worker or the load has ended unexpectedly."""


class SoakRun:
    """One running soak."""

    def __init__(
        self,
        router: Router,
        workers: Workers,
        load: tuple["Connection[Any, Any]", int],
        share: float,
    ) -> None:
        self._router = router
        self._workers = workers
        self._load, self._load_pid = load
        self._share = share
        self._rate = _FIRST_RATE
        self._owed = 0
        """Answers that the load process still owes."""
        self._ends: Counter[tuple[str, End]] = Counter()
        self._printed = 0
        """Requests that had ended when the last line was printed."""
        self._warm = False
        self._passed = 0.0
        self._guest = False
        self._begun = 0
        """Clients started so far."""
        self._steered = (0.0, 0)
        """The router's CPU time and the clients started at the last adjustment of the load."""
        self.reloads = 0
        self.samples: list[ProcessSample] = []
        self.tasks: list[tuple[float, float]] = []
        self.load_share = self.machine_share = 0.0
        """CPU use of the clients, and of the whole machine, as shares of a core."""

    def state(self) -> State:
        """Return the router's state now."""
        values, pids = gauges(self._router.port), self._router.pids
        names = {worker.port: worker.name for worker in self._workers.all} | {
            self._router.port: "the router"
        }
        return State(sample(pids), values, open_ends(pids, names))

    def run(self, seconds: float) -> None:
        """Run load and faults for `seconds`. Raises Broken."""
        start, load, machine = monotonic(), cpu_seconds(self._load_pid), machine_seconds()
        self._send(self._rate)
        every = {
            self._sample: _SAMPLE_INTERVAL_S,
            self._steer: _STEER_INTERVAL_S,
            self._ask: _METRICS_INTERVAL_S,
            self._tell: _PROGRESS_INTERVAL_S,
            self._reload: _RELOAD_INTERVAL_S,
        }
        last = dict.fromkeys(every, start)
        while (now := monotonic()) < start + seconds:
            self._watch()
            self._passed = now - start
            if not self._warm and self._passed >= seconds / 4:
                self._warm = True
                self._rate /= _WARM_UP_LOAD
            self._workers.step(hurry=not self._warm)
            for act, span in every.items():
                if now >= last[act] + span:
                    last[act] = now
                    act()
            time.sleep(TICK_INTERVAL_S)
        self.load_share = (cpu_seconds(self._load_pid) - load) / (now - start)
        self.machine_share = (machine_seconds() - machine) / (now - start)

    def finish(self) -> SoakTally:
        """End all faults and the load, and wait for the last answers. Raises Broken."""
        self._workers.heal()
        self._load.send(None)
        deadline = monotonic() + _END_TIMEOUT_S
        while monotonic() < deadline:
            self._watch()
            while self._load.poll(TICK_INTERVAL_S):
                message = self._load.recv()
                if isinstance(message, SoakTally):
                    self._settle()
                    return message
        raise Broken("the clients do not end")

    def _settle(self) -> None:
        """Restore the initial settings and wait until all workers are well."""
        if self._guest:
            self._reload()
        while not self._workers.well:
            self._watch()
            time.sleep(TICK_INTERVAL_S)

    def rest(self, before: State) -> State:
        """Wait up to half a minute for the router to be as before; return its state."""
        deadline = monotonic() + _RELEASE_TIMEOUT_S
        while True:
            self._watch()
            now = self.state()
            if monotonic() > deadline or now.nothing_more(before):
                return now
            time.sleep(1.0)

    # Periodic actions.

    def _watch(self) -> None:
        if self._router.process.poll() is not None:
            raise Broken(f"the router has ended:\n{self._router.last_words()}")
        try:
            self._workers.state()
        except EOFError:
            raise Broken("a worker has ended by itself") from None

    def _sample(self) -> None:
        self.samples.append(sample(self._router.pids))

    def _ask(self) -> None:
        with suppress(OSError):  # it is asked again later
            self.tasks.append((monotonic(), gauges(self._router.port).tasks))

    def _steer(self) -> None:
        """During warm-up, set the rate that gives the desired CPU share, from a client's cost."""
        self._send(self._rate)
        now, begun = sample(self._router.pids).cpu_s, self._begun
        (cpu, before), self._steered = self._steered, (now, begun)
        if not self._warm and cpu and begun - before >= _MIN_CLIENTS:
            cost = (now - cpu) / (begun - before)
            rate = min(_WARM_UP_LOAD * self._share / cost, _MAX_RATE)
            self._rate = min(max(rate, self._rate / 2), self._rate * 2)

    def _send(self, rate: float) -> None:
        """Send the rate to the load and receive its counts. Raises Broken."""
        try:
            while self._load.poll():
                self._begun, self._ends = self._load.recv()
                self._owed -= 1
            if not self._owed:
                self._load.send(rate)
                self._owed += 1
        except (EOFError, ConnectionError):
            raise Broken("the load has ended by itself") from None

    def _reload(self) -> None:
        self._guest = not self._guest
        listen = {"listen": f"127.0.0.1:{self._router.port}"}
        self._router.change(listen | settings(self._workers, guest=self._guest))
        self.reloads += 1

    def _tell(self) -> None:
        now, ended = self.samples[-1], sum(self._ends.values())
        before = self.samples[
            max(0, len(self.samples) - 1 - int(_PROGRESS_INTERVAL_S / _SAMPLE_INTERVAL_S))
        ]
        span = max(now.at - before.at, 1e-9)
        failed = sum(count for (_, end), count in self._ends.items() if end in FAILED)
        wrong = sum(count for (_, end), count in self._ends.items() if end in NEVER)
        doing = [
            f"{worker.name} {worker.doing}" for worker in self._workers.staying if worker.doing
        ]
        minutes, seconds = divmod(int(self._passed), 60)
        _err.print(
            f"{minutes:3}:{seconds:02} {(ended - self._printed) / _PROGRESS_INTERVAL_S:7,.0f}/s"
            f"  router {(now.cpu_s - before.cpu_s) / span:4.0%} {now.memory_mb:7.1f} MB"
            f" {now.descriptors:5} descriptors"
            f"  {ended:,} ended, {failed:,} failed, {wrong:,} wrong"
            f"  {', '.join(doing) or 'all well'}",
            markup=False,
        )
        self._printed = ended


def settings(workers: Workers, *, guest: bool) -> dict[str, Any]:
    """Return the router's settings; timeouts are short so that it reacts to faults quickly."""
    members = workers.all if guest else workers.staying
    return {
        "strategy": {"name": "prefixaware", "memory": "16MiB"},
        "workers": [
            {"url": f"http://127.0.0.1:{worker.port}", "name": worker.name} for worker in members
        ],
        "clients": {"header": "3s", "body": "5s", "write": "5s", "keepalive": "10s"},
        "timeouts": {
            "connect": "1s",
            "first_byte": "5s",
            "idle": "3s",
            "total": "40s",
            "comment": "1s",
        },
        "limits": {"body": f"{MAX_BODY_BYTES}B", "in_flight": 200},
        "health": {"interval": "1s"},
        "shutdown": {"delay": "0s", "drain": "5s"},
    }
