"""Token ids that go along with a chat, to workers that surely take them."""

from pathlib import Path
from typing import Any

import pytest

from tests.identity_live.asking import ask, states, until_asked, until_known
from tests.identity_live.conftest import MakeEngine, Start
from tests.identity_live.engine import Engine, card
from tests.identity_live.models import OTHER, make_model
from tests.reload.changing import change
from tests.support import until

ON = {"forward_token_ids": True}


def sent(engine: Engine) -> Any:
    """The ids that came with the last chat."""
    return engine.chats[-1].get("kv_transfer_params", {}).get("prompt_token_ids")


def test_ids_go_along(engine: MakeEngine, start: Start, folder: Path) -> None:
    """Those that the engine would make itself."""
    worker = engine(folder)
    router = start(worker, tokenizer=ON)
    until(lambda: router.worker().takes_ids)
    assert ask(router) == 200
    asked = {name: value for name, value in worker.chats[-1].items() if "kv_" not in name}
    assert sent(worker) == worker.ids("/v1/chat/completions", asked)


def test_only_where_asked_for(engine: MakeEngine, start: Start, folder: Path) -> None:
    """Nobody is tried who is sent none anyway; a reload turns it on."""
    worker = engine(folder)
    router = start(worker)
    until_known(router)
    assert ask(router) == 200
    assert len(worker.chats) == 1
    assert sent(worker) is None
    change(router, worker.url, tokenizer=ON)
    until(lambda: router.worker().takes_ids)


@pytest.mark.parametrize("lacking", ["takes_ids", "status"])
def test_only_to_workers_that_take_them_and_agree(
    engine: MakeEngine, start: Start, folder: Path, lacking: str
) -> None:
    """One that does not know the field, or cannot be asked for its tokens, gets none."""
    worker = engine(folder)
    setattr(worker, lacking, 404 if lacking == "status" else False)
    router = start(worker, tokenizer=ON)
    until_known(router)
    assert ask(router) == 200
    assert not router.worker().takes_ids
    assert sent(worker) is None


def test_not_to_one_that_came_back_as_another(
    engine: MakeEngine,
    start: Start,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not even before it is asked again."""
    worker = engine(folder)
    router = start(worker, tokenizer=ON)
    until(lambda: router.worker().takes_ids)
    worker.well = False
    until(lambda: not router.worker().ready)
    worker.loads(make_model(tmp_path / "other", OTHER))
    worker.models = [card("m", folder)]
    worker.hold.clear()
    worker.well = True
    until(lambda: router.worker().ready)
    until(lambda: not router.worker().takes_ids)
    assert ask(router) == 200
    assert sent(worker) is None
    worker.hold.set()
    until(lambda: states(router)[worker.name] == "differs")


def test_every_model_of_a_worker_counts(
    engine: MakeEngine, start: Start, folder: Path, tmp_path: Path
) -> None:
    """One that it does not take makes it one that is sent none."""
    other = make_model(tmp_path / "other", OTHER)
    worker = engine(folder, [card("m", folder), card("n", other)])
    router = start(worker, tokenizer=ON)
    until_asked(router, worker, model="n")
    until_known(router)
    assert states(router, "n") == {worker.name: "differs"}
    assert not router.worker().takes_ids
