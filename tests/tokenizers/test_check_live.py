"""`warmroute check FILE --live`: what it reports about workers and tokenizers."""

import json
from pathlib import Path
from typing import Any

import pytest

from router.tokenizers.status import BLIND
from tests.commands import run
from tests.tokenizers.conftest import MakeEngine
from tests.tokenizers.engine import Engine, card
from tests.tokenizers.models import OTHER, make_model


def check(folder: Path, *engines: Engine | str, **settings: Any) -> tuple[int, list[str]]:
    """Return the exit code, and the lines printed."""
    path = folder / "settings.yaml"
    workers = [engine if isinstance(engine, str) else engine.url for engine in engines]
    path.write_text(json.dumps({"workers": workers, **settings}))
    done = run("check", path, "--live", "--no-ask")
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_all_is_well(engine: MakeEngine, folder: Path, tmp_path: Path) -> None:
    """Exit code 0, a line for each worker, and its state for each tokenizer."""
    one, two = engine(folder), engine(folder, [card("m", folder), card("text")])
    two.status = 404
    code, lines = check(tmp_path, one, two)
    assert code == 0
    assert lines[:2] == [
        f"pool default: worker {one.name}: ready: m",
        f"pool default: worker {two.name}: ready: m, text",
    ]
    assert lines[2].startswith("pool default: m: tokens by ")
    assert set(lines[3:5]) == {
        f"  worker {one.name}: agrees: the same tokens of {len(one.tokenized)} probes",
        f"  worker {two.name}: unverified: /tokenize answered 404",
    }
    why = "its workers do not tell where they have it from"
    assert lines[5:] == [f"pool default: text: keyed by text: {why}"]


@pytest.mark.long
def test_a_worker_that_differs_and_one_that_is_away(
    engine: MakeEngine, folder: Path, tmp_path: Path, dead_url: str
) -> None:
    """Exit code 1, with the first difference; the others are still asked."""
    worker = engine(make_model(tmp_path / "other", OTHER), [card("m", folder)])
    code, lines = check(tmp_path, dead_url, worker)
    assert code == 1
    assert f"pool default: worker {dead_url[7:]}: down: /health: " in lines[0]
    assert lines[2] == "pool default: m: keyed by text: a worker tokenizes differently"
    assert lines[3].startswith(f'  worker {worker.name}: differs: probe "chat", token 11 after ')


@pytest.mark.long
def test_a_tokenizer_that_is_not_there(engine: MakeEngine, folder: Path, tmp_path: Path) -> None:
    """Exit code 1 if the settings name it; 0 if only workers do."""
    worker = engine(folder, [card("m", "nobody/nothing")])
    said = "nobody/nothing is not in the hub's cache, and HF_HUB_OFFLINE is set"
    for settings, expected in (({"tokenizer": "nobody/nothing"}, 1), ({}, 0)):
        code, lines = check(tmp_path, worker, **settings)
        assert code == expected
        assert lines[1] == f"pool default: m: keyed by text: {said}"


@pytest.mark.long
def test_kv_events_without_a_tokenizer(engine: MakeEngine, folder: Path, tmp_path: Path) -> None:
    """Exit code 1: no prompt could be looked up among them."""
    worker = engine(folder, [card("m", "nobody/nothing")])
    code, lines = check(tmp_path, worker, strategy="kvaware")
    assert code == 1
    assert lines[1].startswith("pool default: m: keyed by text: nobody/nothing is not in ")
    assert lines[1].endswith("; without tokens, none of their KV events can be used")
    assert BLIND not in "".join(check(tmp_path, engine(folder), strategy="kvaware")[1])
