"""Workers with models of their own, and routers that notice changes quickly."""

from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.support import MakeRouter, Router
from tests.tokenizers.engine import Engine
from tests.tokenizers.models import make_model

QUICK = {"interval": "20ms", "timeout": "5s", "fall": 1}
#: Intervals at which models are listed and due work is done, in seconds.
SHORT = {
    "router.fleet.probes.REDISCOVER_S": 0.02,
    "router.tokenizers.registry.POLL_INTERVAL_S": 0.02,
    "router.tokenizers.sources.RETRY_INTERVAL_S": 0.02,
    "router.tokenizers.sources.MAX_RETRY_INTERVAL_S": 0.05,
    "router.tokenizers.state.RETRY_INTERVAL_S": 0.05,
    "router.tokenizers.state.MAX_RETRY_INTERVAL_S": 0.05,
}


class MakeEngine(Protocol):
    """Start a worker with a model folder that serves these models."""

    def __call__(
        self,
        folder: Path | None,
        models: list[dict[str, Any]] | None = None,
        kind: type[Engine] = Engine,
    ) -> Engine: ...


class Start(Protocol):
    """Start a router in front of workers, with settings."""

    def __call__(self, *engines: Engine, **settings: Any) -> Router: ...


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder."""
    return make_model(tmp_path / "models" / "llama")


@pytest.fixture
def engine(stack: ExitStack) -> MakeEngine:
    """Start workers."""

    def make(
        folder: Path | None,
        models: list[dict[str, Any]] | None = None,
        kind: type[Engine] = Engine,
    ) -> Engine:
        made = kind(folder, models)
        stack.callback(made.stop)
        return made

    return make


@pytest.fixture
def start(route: MakeRouter, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Start routers."""
    for interval, seconds in SHORT.items():
        monkeypatch.setattr(interval, seconds)

    def make(*engines: Engine, **settings: Any) -> Router:
        urls = [engine.url for engine in engines]
        return route(*urls, **{"health": QUICK, **settings})

    return make
