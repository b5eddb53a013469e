"""What Prometheus scrapes. Labels come from the configuration only, never from a request."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from router.fleet import Fleet, Pool, State

_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_MICRO = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25)


class PoolMetrics:
    """The series of one pool, their labels looked up once."""

    def __init__(self, metrics: "Metrics", pool: Pool) -> None:
        name = pool.name
        self.first_byte = metrics.first_byte.labels(name)
        self.duration = metrics.duration.labels(name)
        self.prompt_tokens = metrics.prompt_tokens.labels(name)
        self.cached_tokens = metrics.cached_tokens.labels(name)
        self.predicted_tokens = metrics.predicted_tokens.labels(name)
        self._metrics = metrics
        self._name = name

    def answered(self, worker: str, status: int) -> None:
        """An answer was relayed."""
        label = "499" if status == 499 else f"{status // 100}xx"
        self._metrics.requests.labels(self._name, worker, label).inc()

    def decided(self, reason: str) -> None:
        """The strategy chose, for this reason."""
        self._metrics.decisions.labels(self._name, reason).inc()

    def failed(self, worker: str, kind: str) -> None:
        """Something went wrong between us and a worker."""
        self._metrics.worker_errors.labels(self._name, worker, kind).inc()


class Metrics:
    """All series of one router, in a registry of their own."""

    def __init__(self, fleet: Fleet) -> None:
        self.registry = CollectorRegistry()
        self.requests = self._counter(
            "requests",
            "Requests answered by a worker, by class of status; 499 is a client that left.",
            ("pool", "worker", "status"),
        )
        self.refused = self._counter(
            "refused_requests", "Requests answered by the router itself, by status.", ("status",)
        )
        self.decisions = self._counter(
            "decisions", "Why the first worker was first.", ("pool", "reason")
        )
        self.worker_errors = self._counter(
            "worker_errors",
            "Failures between the router and a worker.",
            ("pool", "worker", "kind"),
        )
        self.first_byte = self._seconds(
            "first_byte_seconds",
            "From the request's last byte to the answer's first, streaming requests.",
        )
        self.duration = self._seconds(
            "request_seconds", "From the request's last byte to the answer's last."
        )
        self.overhead = Histogram(
            "warmroute_decision_seconds",
            "From the request's last byte to the decision.",
            buckets=_MICRO,
            registry=self.registry,
        )
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens that workers reported.")
        self.cached_tokens = self._counter(
            "cached_tokens", "Prompt tokens that workers reported as cached."
        )
        self.predicted_tokens = self._counter(
            "predicted_cached_tokens",
            "Prompt tokens that the decision expected to be cached, where workers report them.",
        )
        self.pools = {pool.name: PoolMetrics(self, pool) for pool in fleet.pools}
        self.registry.register(_FleetCollector(fleet))

    def _counter(self, name: str, says: str, labels: tuple[str, ...] = ("pool",)) -> Counter:
        return Counter(f"warmroute_{name}", says, labels, registry=self.registry)

    def _seconds(self, name: str, says: str) -> Histogram:
        return Histogram(
            f"warmroute_{name}", says, ("pool",), buckets=_SECONDS, registry=self.registry
        )


class _FleetCollector(Collector):
    """Reads the fleet when scraped, so that nothing is written on the request path."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return the gauges of every worker and strategy."""
        labels = ("pool", "worker")
        up = GaugeMetricFamily("warmroute_worker_up", "1 if ready, else 0.", labels=labels)
        flying = GaugeMetricFamily(
            "warmroute_in_flight", "Requests booked and not ended.", labels=labels
        )
        booked = GaugeMetricFamily("warmroute_kv_tokens_booked", "KV tokens booked.", labels=labels)
        pace = GaugeMetricFamily(
            "warmroute_pace_factor", "Learned prefill time over the first guess.", labels=labels
        )
        gauges: dict[str, GaugeMetricFamily] = {}  # one family a name, whatever the pools
        for pool in self._fleet.pools:
            for worker in pool.workers:
                where = (pool.name, worker.name)
                up.add_metric(where, float(worker.state is State.READY))
                flying.add_metric(where, worker.load.in_flight)
                booked.add_metric(where, worker.load.kv_tokens)
                pace.add_metric(where, worker.pace.factor)
            for name, value in pool.strategy.gauges().items():
                if name not in gauges:
                    gauges[name] = GaugeMetricFamily(
                        f"warmroute_{name}", "Size kept by the strategy.", labels=("pool",)
                    )
                gauges[name].add_metric((pool.name,), value)
        return [up, flying, booked, pace, *gauges.values()]
