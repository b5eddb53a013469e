"""Settings that need a single process: refused with several, at the start and on reload."""

from controller.events.shared_socket import binds
from router.rebuild import CannotBuild
from router.settings import Settings
from strategies import registry


def refuse_what_needs_one(settings: Settings) -> None:
    """Raise CannotBuild if any of the settings needs a single process."""
    _refuse_split_sessions(settings)
    _refuse_engines_that_dial_in(settings)


def _refuse_split_sessions(settings: Settings) -> None:
    """Refuse sessions without Redis: a session in one process would be unknown to the others."""
    if settings.session.redis is not None:
        return
    for pool in settings.all_pools():
        if registry.make(pool.strategy.name, pool.strategy.options).capabilities.keeps_sessions:
            raise CannotBuild(
                f"pool {pool.name}: several processes need one place for their sessions: give"
                " session.redis, or serve by one process"
            )


def _refuse_engines_that_dial_in(settings: Settings) -> None:
    """Refuse engines that connect to us: only one process can bind the port they connect to."""
    if settings.controller is not None:
        return
    for pool in settings.all_pools():
        for worker in pool.workers:
            if worker.kv_events is not None and binds(worker.kv_events):
                raise CannotBuild(
                    f"pool {pool.name}: worker {worker.name}: several processes cannot hear an"
                    f" engine that dials in at {worker.kv_events}: give the engine's own address,"
                    " or a controller, or serve by one process"
                )
