"""`warmroute serve` with a tokenizer, in one process and in several."""

import signal
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from tests.commands import started
from tests.support import until
from tests.tokenizers.conftest import MakeEngine
from tests.tokenizers.engine import Engine


def until_told(url: str) -> dict[str, Any]:
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


def test_one_process_and_several(engine: MakeEngine, folder: Path, tmp_path: Path) -> None:
    """Each process verifies for itself, but workers are counted once."""
    for count in (1, 2):
        workers: list[Engine] = [engine(folder), engine(folder)]
        settings = tmp_path / f"{count}.yaml"
        settings.write_text(
            f"listen: 127.0.0.1:0\nshutdown: {{delay: 0s}}\ntokenizer: ./models/llama\n"
            f"workers: [{', '.join(worker.url for worker in workers)}]\n"
        )
        out = tmp_path / str(count)
        out.mkdir()
        args = ("serve", "--config", settings, "--processes", count)
        with started(out, *args) as running:
            url = running.url()
            told = until_told(url)
            assert (told["source"], told["name"]) == ("folder", str(folder))
            assert [one["state"] for one in told["workers"]] == ["agrees", "agrees"]
            until(partial(counts, url, agrees=2, unverified=0, differs=0))
            log = running.err.read_text()
            assert log.count("pool default: m: tokens by ") >= 1
            assert "the settings say so (workers: 2 agrees)" in log
            assert running.end(signal.SIGTERM) == 0
