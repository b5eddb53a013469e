"""`kvaware` routers in front of simulated workers with a real tokenizer."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from controller.events import subscriber
from controller.events.sockets import Intervals
from router.fleet import probes as health
from simulator.fleet import FleetThread
from simulator.settings import FleetSettings
from tests.support import MakeRouter, Router, until
from tests.tokenizers.asking import until_known
from tests.tokenizers.models import make_model

QUICK = {"interval": "20ms", "timeout": "5s", "fall": 1}

MakeFleet = Callable[..., FleetThread]
MakeKvAware = Callable[..., Router]


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the intervals of periodic checks."""
    monkeypatch.setattr(health, "REDISCOVER_S", 0.02)
    monkeypatch.setattr("router.tokenizers.registry.POLL_INTERVAL_S", 0.02)
    often = partial(subscriber.Subscriber, Intervals(tick=0.02))
    monkeypatch.setattr(subscriber, "Subscriber", often)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder."""
    return make_model(tmp_path / "models" / "llama")


@pytest.fixture
def fleet(stack: ExitStack, folder: Path) -> MakeFleet:
    """Start simulated workers."""

    def make(**settings: Any) -> FleetThread:
        asked = {"workers": 2, "profile": "toy", "models": ("toy",), "tokenizer": folder}
        return stack.enter_context(FleetThread(FleetSettings(**{**asked, **settings})))

    return make


@pytest.fixture
def kvaware(route: MakeRouter, folder: Path) -> MakeKvAware:
    """Start routers."""

    def make(*workers: Any, **settings: Any) -> Router:
        asked = {"strategy": "kvaware", "tokenizer": str(folder), "health": QUICK}
        router = route(*workers, **{**asked, **settings})
        until_known(router, "toy")
        until(lambda: trusted(router))
        return router

    return make


def trusted(router: Router) -> bool:
    """Return whether the events of all workers can be used."""
    return all(
        not memory.doubt(worker.name)
        for pool, memory in router.door.memories.pools()
        for worker in pool.workers
    )
