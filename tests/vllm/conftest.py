"""Engines for the tests of this folder, which are skipped if vLLM is not installed."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import pytest

from tests.vllm.engine import NOT_INSTALLED, Engine, command, make_model

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests: engines take half a minute to start, and may not be installed."""
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.vllm)
            item.add_marker(pytest.mark.timeout(1800))
            if command() is None:
                item.add_marker(pytest.mark.skip(reason=NOT_INSTALLED))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny model."""
    return make_model(tmp_path_factory.mktemp("models") / "tiny")


class StartEngine(Protocol):
    """Start vLLM with a model folder and flags."""

    def __call__(self, folder: Path, *flags: str) -> Engine: ...


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartEngine]:
    """Start engines that are stopped after the module's last test.

    The same arguments return the same engine. Only one runs at a time: starting another one stops
    it.
    """
    with ExitStack() as opened:
        running: dict[tuple[Path, tuple[str, ...]], Engine] = {}

        def start(folder: Path, *flags: str) -> Engine:
            if (folder, flags) not in running:
                running.clear()
                opened.close()
                log = tmp_path_factory.mktemp("vllm") / "engine.log"
                engine = Engine(folder, log, *flags)
                opened.callback(engine.stop)
                running[folder, flags] = engine.start()
            return running[folder, flags]

        yield start
