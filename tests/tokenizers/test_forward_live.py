"""Token ids sent along with chats, to workers known to accept them."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.reload.changing import change
from tests.support import until
from tests.tokenizers.asking import ask, exact, knows, states, until_asked, until_known
from tests.tokenizers.conftest import MakeEngine, Start
from tests.tokenizers.engine import Engine, card
from tests.tokenizers.models import OTHER, make_model

ON = {"forward_token_ids": True}


def sent(engine: Engine) -> Any:
    """Return the ids sent with the last chat."""
    return engine.chats[-1].get("kv_transfer_params", {}).get("prompt_token_ids")


def of_last_chat(engine: Engine) -> Any:
    """Return the ids that the engine makes of the last chat itself."""
    asked = {name: value for name, value in engine.chats[-1].items() if "kv_" not in name}
    return engine.ids("/v1/chat/completions", asked)


def test_ids_go_along_where_asked_for(engine: MakeEngine, start: Start, folder: Path) -> None:
    """They are the ids that the engine would make itself. By default no worker is probed and no
    ids are sent; a reload turns it on."""
    worker = engine(folder)
    router = start(worker)
    until_known(router)
    assert ask(router) == 200
    assert len(worker.chats) == 1
    assert sent(worker) is None
    change(router, worker.url, tokenizer=ON)
    until(lambda: router.worker().takes_ids)
    assert ask(router) == 200
    assert sent(worker) == of_last_chat(worker)


def test_not_with_what_is_read_laxly(engine: MakeEngine, start: Start, folder: Path) -> None:
    """The ids of a prompt with half an emoji are not those that its worker would make."""
    worker = engine(folder)
    router = start(worker, tokenizer=ON)
    until(lambda: router.worker().takes_ids)
    body = rb'{"model":"m","messages":[{"role":"user","content":"Hello \ud83d"}],"max_tokens":1}'
    router.http.post("/v1/chat/completions", content=body)
    assert worker.chats[-1]["messages"][0]["content"] == "Hello \ud83d"
    assert sent(worker) is None
    body = body.replace(rb"\ud83d", rb"\ud83d\ude00")
    assert router.http.post("/v1/chat/completions", content=body).status_code == 200
    assert sent(worker)


@pytest.mark.parametrize("lacking", ["takes_ids", "status"])
def test_only_to_workers_that_take_them_and_agree(
    engine: MakeEngine, start: Start, folder: Path, lacking: str
) -> None:
    """A worker that does not know the field, or is unverified, gets none."""
    worker = engine(folder)
    setattr(worker, lacking, 404 if lacking == "status" else False)
    router = start(worker, tokenizer=ON)
    until_known(router)
    assert ask(router) == 200
    assert not router.worker().takes_ids
    assert sent(worker) is None


@pytest.mark.parametrize("stays", [True, False])
def test_not_to_one_that_has_another_model(
    engine: MakeEngine, start: Start, folder: Path, tmp_path: Path, *, stays: bool
) -> None:
    """Not even before it has been asked again, whether it `stays` ready, or comes back and reports
    the same model."""
    worker = engine(folder)
    router = start(worker, tokenizer={"source": str(folder), **ON})
    until(lambda: router.worker().takes_ids)
    worker.hold.clear()
    if stays:
        worker.loads(make_model(tmp_path / "other", OTHER))
    else:
        worker.well = False
        until(lambda: not router.worker().ready)
        worker.loads(make_model(tmp_path / "other", OTHER))
        worker.models = [card("m", folder)]
        worker.well = True
        until(lambda: router.worker().ready)
    until(lambda: not router.worker().takes_ids, seconds=4)  # sooner than the answer times out
    assert ask(router) == 200
    assert sent(worker) is None
    worker.hold.set()
    until(lambda: states(router)[worker.name] == "differs")
    until(lambda: not knows(router))


def test_every_model_of_a_worker_counts(
    engine: MakeEngine, start: Start, folder: Path, tmp_path: Path
) -> None:
    """If a worker differs for one of its models, it is sent no ids at all."""
    other = make_model(tmp_path / "other", OTHER)
    worker = engine(folder, [card("m", folder), card("n", other)])
    router = start(worker, tokenizer=ON)
    until_asked(router, worker, model="n")
    until_known(router)
    assert states(router, "n") == {worker.name: "differs"}
    assert not router.worker().takes_ids


def test_tokens_of_another_model_are_not_sent_after_a_wait(
    engine: MakeEngine, start: Start, folder: Path, tmp_path: Path
) -> None:
    """A request that was queued while the model changed is tokenized again."""
    worker = engine(folder)
    router = start(worker, tokenizer=ON, limits={"in_flight": 1})
    until(lambda: router.worker().takes_ids)
    worker.go.clear()
    with ThreadPoolExecutor() as clients:
        first = clients.submit(ask, router)
        until(lambda: worker.chats)
        second = clients.submit(ask, router)
        until(lambda: router.metric("warmroute_queue_length") == 1)
        old = exact(router)
        worker.loads(make_model(tmp_path / "other", OTHER))
        until(lambda: exact(router) not in (None, old) and router.worker().takes_ids)
        worker.go.set()
        assert (first.result(20), second.result(20)) == (200, 200)
    assert sent(worker) == of_last_chat(worker)
