"""Builds a fleet from settings, and changes it when the settings change.

First a plan is made; whatever can go wrong goes wrong there. Carrying it out is a few assignments
without an await, so every request sees either the old fleet or the new one.

A worker with the same name and URL is the same worker: it keeps its connections, bookings and
learned pace, whatever else has changed in its settings. A pool keeps its strategy, and everything
the strategy remembers, as long as the strategy's name and options stay the same.
"""

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from ssl import SSLContext

from router.fleet.fleet import Fleet
from router.fleet.pool import Pool
from router.fleet.worker import Worker
from router.http.tls import Contexts
from router.settings.fleet import StrategySettings
from router.settings.model import PoolSettings, Settings, WorkerSettings
from router.upstream.pool import Upstream
from strategies.api import Strategy
from strategies.registry import make


class CannotBuild(Exception):
    """Valid settings that still cannot be put into effect; the message is a sentence saying why."""


class Plan:
    """The steps from one fleet to the next. Nothing changes before `carry_out`."""

    def __init__(
        self, fleet: Fleet, old: Settings | None, new: Settings, contexts: Contexts
    ) -> None:
        """Compare the fleet, which was made from `old`, with `new`. Raises CannotBuild."""
        self.joining: list[Worker] = []
        """Workers that the fleet does not have yet."""
        self._fleet = fleet
        self._contexts = contexts
        self._timeouts = new.timeouts
        self._ejection = new.health.ejection
        self._keyed = bool(new.client_keys)
        _check_installed(new)
        self._workers = {worker.name: worker for worker in fleet.workers}
        self._steps: list[Callable[[], None]] = []
        pools = {pool.name: pool for pool in fleet.pools}
        strategies = {pool.name: pool.strategy for pool in old.all_pools()} if old else {}
        self._pools = [
            self._pool(pool, pools.get(pool.name), strategies.get(pool.name))
            for pool in new.all_pools()
        ]

    def carry_out(self) -> list[Worker]:
        """Replace the fleet, between two requests; return the workers that have left it."""
        before = list(self._fleet.workers)
        for step in self._steps:
            step()
        self._fleet.replace(self._pools)
        for pool in self._pools:
            pool.eject(self._ejection)
        staying = set(self._fleet.workers)
        leaving = [worker for worker in before if worker not in staying]
        for worker in leaving:
            worker.leave()
        self._contexts.keep(worker.upstream.tls for worker in staying)
        return leaving

    def _pool(
        self, new: PoolSettings, pool: Pool | None, strategy: StrategySettings | None
    ) -> Pool:
        workers = [self._worker(worker) for worker in new.workers]
        if pool is not None and strategy and strategy.written() == new.strategy.written():
            self._steps.append(partial(pool.change, new.models, workers))
            return pool
        # A new pool, so that requests in flight are settled with the strategy that decided them. It
        # gets its workers in `carry_out`: until then they belong to the old pool.
        made = Pool(new.name, new.models, (), _strategy(new))
        self._steps.append(partial(made.change, new.models, workers))
        if pool is not None:
            self._steps.append(partial(made.follow, pool))
        return made

    def _worker(self, new: WorkerSettings) -> Worker:
        tls = self._context(new)
        worker = self._workers.get(new.name)
        if worker is not None and worker.url == new.url:
            self._steps.append(partial(self._change, worker, new))
            if not worker.upstream.serves(tls, self._timeouts):
                self._steps.append(partial(worker.reach, self._upstream(new, tls)))
            return worker
        worker = Worker(new.name, new.url, self._upstream(new, tls))
        self._change(worker, new)
        self.joining.append(worker)
        return worker

    def _change(self, worker: Worker, new: WorkerSettings) -> None:
        # If clients need a key of the router's, it must not be passed on to workers: "" sends none.
        key = new.api_key.get_secret_value() if new.api_key else "" if self._keyed else None
        worker.change(
            models=new.models,
            kv_tokens=new.kv_tokens,
            api_key=key,
            stateful=new.stateful,
            draining=new.drain,
            engine_fields=new.engine_fields,
        )

    def _upstream(self, new: WorkerSettings, tls: SSLContext | None) -> Upstream:
        return Upstream(new.address.host, new.address.port, tls=tls, timeouts=self._timeouts)

    def _context(self, new: WorkerSettings) -> SSLContext | None:
        try:
            return self._contexts.of(new)
        except ValueError as error:  # a file has changed since the settings were read
            raise CannotBuild(f"worker {new.name}: {error}") from None


def build(settings: Settings, contexts: Contexts) -> Fleet:
    """Make the fleet that `settings` describe. Raises CannotBuild."""
    fleet = Fleet(())
    Plan(fleet, None, settings, contexts).carry_out()
    return fleet


def _check_installed(settings: Settings) -> None:
    """Raise CannotBuild if the settings need an optional package that is not installed."""
    wanted = {
        "redis": ("redis", settings.session.redis is not None),
        "botocore": ("sigv4", bool(settings.sagemaker.sigv4)),
    }
    for package, (extra, needed) in wanted.items():
        if needed and find_spec(package) is None:
            raise CannotBuild(
                f"the package {package} is not installed: pip install 'warmroute[{extra}]'"
            )


def _strategy(settings: PoolSettings) -> Strategy:
    """Make the pool's strategy. Raises CannotBuild for any error that the strategy raises."""
    name = settings.strategy.name
    try:
        return make(name, dict(settings.strategy.options))
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise CannotBuild(
            f"pool {settings.name}: strategy {name} cannot be made: {' '.join(reason.split())}"
        ) from error
