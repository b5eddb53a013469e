"""`warmroute serve` with a tokenizer, in one process and in several; and simulated workers."""

import signal
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from simulator.fleet import FleetThread
from simulator.settings import FleetSettings
from tests.commands import started
from tests.support import MakeRouter, until
from tests.tokenizers.asking import ask, keyed, states, until_known
from tests.tokenizers.conftest import QUICK, MakeEngine


def shown(url: str) -> dict[str, Any]:
    """Wait until prompts are keyed by tokens; return the tokenizer."""
    found: list[dict[str, Any]] = []

    def is_keyed() -> bool:
        found[:] = httpx.get(url + "/tokenizers").json()
        return bool(found) and all(one["keyed"] == "tokens" for one in found)

    until(is_keyed, 30)
    (one,) = found
    return one


def counts(url: str, **states: int) -> bool:
    """Return whether the metrics count so many workers."""
    lines = httpx.get(url + "/metrics").text.splitlines()
    rows = [line for line in lines if line.startswith("warmroute_tokenizer_workers{")]
    return {row.split('"')[3]: int(float(row.split()[-1])) for row in rows} == states


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.long)])
def test_processes(engine: MakeEngine, folder: Path, tmp_path: Path, processes: int) -> None:
    """Each verifies for itself, but workers are counted once."""
    workers = [engine(folder), engine(folder)]
    settings = tmp_path / "settings.yaml"
    settings.write_text(
        f"listen: 127.0.0.1:0\nshutdown: {{delay: 0s}}\ntokenizer: ./models/llama\n"
        f"workers: [{', '.join(worker.url for worker in workers)}]\n"
    )
    with started(tmp_path, "serve", "--config", settings, "--processes", processes) as running:
        url = running.url()
        found = shown(url)
        assert (found["source"], found["name"]) == ("folder", str(folder))
        assert [one["state"] for one in found["workers"]] == ["agrees", "agrees"]
        until(partial(counts, url, agrees=2, unverified=0, differs=0))
        log = running.err.read_text()
        assert log.count("pool default: m: tokens by ") >= 1
        assert "the settings say so (workers: 2 agrees)" in log
        assert running.end(signal.SIGTERM) == 0


def test_simulated_workers(route: MakeRouter, folder: Path) -> None:
    """They render and tokenize with code of their own, and agree on all probes; their token counts
    are the router's."""
    settings = FleetSettings(workers=2, profile="toy", models=("toy",), tokenizer=folder)
    with FleetThread(settings) as fleet:
        router = route(*fleet.urls, tokenizer=str(folder), health=QUICK)
        until_known(router, "toy")
        assert list(states(router, "toy").values()) == ["agrees", "agrees"]
        for text in ("hello", "Zürich <|im_end|> 日本 😀", "x" * 5000):
            assert ask(router, text, "toy") == 200
        assert (keyed(router, "tokens"), keyed(router, "text")) == (3, 0)
        until(router.idle)
        assert router.metric("warmroute_prompts_miscounted_total", pool="default") == 0
