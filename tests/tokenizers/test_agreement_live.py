"""Workers that make the same tokens, make different ones, or do not tell."""

import json
import logging
from pathlib import Path

import pytest

from router.rendering.tokens import PromptTokenizer
from router.tokenizers import state as case
from router.tokenizers import verify as recount
from router.tokenizers import verify as verifying
from router.tokenizers.probes import answers
from router.tokenizers.state import BLIND
from tests.reload.changing import change
from tests.support import until
from tests.tokenizers.asking import (
    ask,
    keyed,
    knows,
    states,
    tokenizer,
    until_asked,
    until_known,
    workers,
)
from tests.tokenizers.conftest import MakeEngine, Start
from tests.tokenizers.engine import card
from tests.tokenizers.models import MERGES, OTHER, make_model


@pytest.fixture(autouse=True)
def _ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask workers again soon."""
    monkeypatch.setattr(case, "RETRY_INTERVAL_S", 0.05)
    monkeypatch.setattr(case, "MAX_RETRY_INTERVAL_S", 0.05)


def test_a_worker_that_differs(
    engine: MakeEngine,
    start: Start,
    folder: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is logged once with the first difference; prompts are keyed by text until it agrees
    again."""
    good, bad = engine(folder), engine(make_model(tmp_path / "other", OTHER), [card("m", folder)])
    with caplog.at_level(logging.INFO, "warmroute.tokenizers"):
        router = start(good, bad)
        until_asked(router, good, bad)
        until(lambda: len(bad.tokenized) > 100)
        assert states(router) == {good.name: "agrees", bad.name: "differs"}
        assert workers(router) == {"agrees": 1, "unverified": 0, "differs": 1}
        assert not knows(router)
        ask(router)
        assert (keyed(router, "tokens"), keyed(router, "text")) == (0, 1)
        bad.loads(folder)
        until_known(router)
    (warning,) = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    said = f'pool default: worker {bad.name} tokenizes m differently: probe "chat", token 11 '
    assert warning.startswith(said)
    assert """after 'er\\nHello!<|im_end|>': 201 '\\n' here, 1 '<|im_start|>' there""" in warning
    assert warning.endswith("prompts are keyed by their text until all workers agree")
    assert f"pool default: worker {bad.name} agrees on m again" in caplog.messages


@pytest.mark.parametrize(("strategy", "level"), [("kvaware", "WARNING"), ("prefixaware", "INFO")])
def test_no_tokenizer(
    engine: MakeEngine, start: Start, caplog: pytest.LogCaptureFixture, strategy: str, level: str
) -> None:
    """It is a warning where prompts are to be looked up among KV events: none can be."""
    with caplog.at_level(logging.INFO, "warmroute.tokenizers"):
        start(engine(None, [card("text")]), strategy=strategy)
        until(lambda: any("keyed by text" in line for line in caplog.messages))
    (line,) = [one for one in caplog.records if "keyed by text" in one.getMessage()]
    assert line.levelname == level
    assert (BLIND in line.getMessage()) == (level == "WARNING")


def test_the_first_difference_is_shown(
    engine: MakeEngine, start: Start, folder: Path, tmp_path: Path
) -> None:
    """With its position, both tokens, and the text before it."""
    other = make_model(tmp_path / "other", merges=[*MERGES[:-1], ("o", "x")])
    worker = engine(other, [card("m", folder)])
    router = start(worker)
    until_asked(router, worker)
    found = tokenizer(router)
    assert found["keyed"] == "text"
    assert found["reason"] == "a worker tokenizes differently"
    difference = found["workers"][0]["difference"]
    ours = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    assert difference["probe"] == "plain"
    assert difference["ours"] == ours["o"]
    assert difference["ours_text"] == "o"
    assert difference["before"].endswith(" f")
    assert difference["theirs"] == ours["er"]  # the same number stands for something else


@pytest.mark.parametrize("status", [401, 403, 404, 405, 501, 500, 503])
def test_a_worker_that_does_not_tell(
    engine: MakeEngine, start: Start, folder: Path, status: int
) -> None:
    """It is unverified, which does not count as a difference."""
    good, silent = engine(folder), engine(folder)
    silent.status = status
    router = start(good, silent)
    until_known(router)
    assert states(router) == {good.name: "agrees", silent.name: "unverified"}
    assert workers(router) == {"agrees": 1, "unverified": 1, "differs": 0}
    why = {one["name"]: one["why"] for one in tokenizer(router)["workers"]}[silent.name]
    assert why == f"/tokenize answered {status}"
    silent.status = 200
    until(lambda: states(router)[silent.name] == "agrees")


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"tokens",
        b"[]",
        b'{"tokens": ["a"]}',
        b'{"tokens": [-1]}',
        b'{"tokens": [99999999999]}',
        b"\xff",
    ],
)
def test_a_worker_that_says_something_else(
    engine: MakeEngine, start: Start, folder: Path, garbage: bytes
) -> None:
    """An invalid answer leaves it unverified too."""
    worker = engine(folder)
    worker.garbage = garbage or b" "
    router = start(worker)
    until_known(router)
    assert states(router) == {worker.name: "unverified"}


def test_a_worker_that_does_not_answer(
    engine: MakeEngine, start: Start, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The router does not wait for longer than the time limit."""
    monkeypatch.setattr("router.tokenizers.verify.WORKER_ANSWERS_TIMEOUT_S", 0.1)
    worker = engine(folder)
    worker.hold.clear()
    router = start(worker)
    until_known(router)
    assert states(router) == {worker.name: "unverified"}
    worker.hold.set()
    until(lambda: states(router) == {worker.name: "agrees"})


def test_a_template_that_refuses_some(engine: MakeEngine, start: Start, tmp_path: Path) -> None:
    """A probe that both refuse is no difference."""
    refusing = "{{ raise_exception('no') if messages|length > 1 }}{{ messages[0].content }}"
    folder = make_model(tmp_path / "m", refusing)
    worker = engine(folder)
    router = start(worker)
    until_known(router)
    assert states(router) == {worker.name: "agrees"}


def test_midnight(
    engine: MakeEngine,
    start: Start,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A difference that is gone when both tokenize again does not count: the date had changed."""
    asked: list[int] = []

    def late(exact: PromptTokenizer) -> dict[str, bytes]:
        asked.append(len(worker.tokenized))
        found = answers(exact)
        return found if len(asked) > 1 else {**found, "chat": found["chat"][4:]}

    monkeypatch.setattr(verifying, "answers", late)
    worker = engine(folder)
    with caplog.at_level(logging.WARNING, "warmroute.tokenizers"):
        router = start(worker)
        until_known(router)
    assert states(router) == {worker.name: "agrees"}
    assert len(asked) == 2
    assert asked[1] == len(worker.tokenized) / 2
    assert not caplog.messages


def test_a_model_without_a_template(engine: MakeEngine, start: Start, tmp_path: Path) -> None:
    """Plain prompts are keyed by tokens, chats by text."""
    worker = engine(make_model(tmp_path / "m", None))
    router = start(worker)
    until_known(router)
    assert states(router) == {worker.name: "agrees"}
    ask(router)
    assert router.http.post("/v1/completions", json={"model": "m", "prompt": "x"}).is_success
    assert (keyed(router, "tokens"), keyed(router, "text")) == (1, 1)


def test_a_worker_that_joins(
    engine: MakeEngine, start: Start, folder: Path, tmp_path: Path
) -> None:
    """It is asked when it joins; if it differs trust ends, and returns when it leaves."""
    good, bad = engine(folder), engine(make_model(tmp_path / "other", OTHER), [card("m", folder)])
    router = start(good)
    until_known(router)
    change(router, good.url, bad.url)
    until(lambda: not knows(router))
    change(router, good.url)
    until_known(router)
    assert states(router) == {good.name: "agrees"}
    assert workers(router) == {"agrees": 1, "unverified": 0, "differs": 0}


def test_a_worker_that_comes_back_as_another(
    engine: MakeEngine, start: Start, folder: Path, tmp_path: Path
) -> None:
    """It is asked again, although it reports the same model."""
    worker = engine(folder)
    router = start(worker)
    until_known(router)
    worker.well = False
    until(lambda: not router.worker().ready)
    worker.loads(make_model(tmp_path / "other", OTHER))
    worker.models = [card("m", folder)]
    worker.well = True
    until(lambda: not knows(router))
    assert tokenizer(router)["reason"] == "a worker tokenizes differently"


def test_a_model_that_changes(
    engine: MakeEngine, start: Start, folder: Path, tmp_path: Path
) -> None:
    """A change under the same name is noticed, and changes the keys."""
    worker = engine(folder)
    router = start(worker)
    until_known(router)
    before = router.door.fleet.pools[0].prompts.known["m"]
    other = make_model(tmp_path / "other", OTHER)
    worker.loads(other)

    def is_another() -> bool:
        known = router.door.fleet.pools[0].prompts.known.get("m")
        return known is not None and known.identity == str(other) != before.identity

    until(is_another)
    assert router.door.fleet.pools[0].prompts.known["m"].exact is not before.exact
    assert tokenizer(router)["name"] == str(other)


def test_a_folder_that_changes(
    engine: MakeEngine, start: Start, folder: Path, tmp_path: Path
) -> None:
    """It is read again when a worker that uses it comes back or differs."""
    worker = engine(folder)
    router = start(worker)
    until_known(router)
    before = router.door.fleet.pools[0].prompts.known["m"].exact
    worker.volume = engine(make_model(tmp_path / "next", OTHER)).volume
    make_model(folder, OTHER)
    worker.well = False
    until(lambda: not router.worker().ready)
    worker.well = True

    def is_new() -> bool:
        known = router.door.fleet.pools[0].prompts.known.get("m")
        return known is not None and known.exact is not before

    until(is_new)
    until(lambda: states(router) == {worker.name: "agrees"})


def test_workers_that_count_other_tokens(
    engine: MakeEngine,
    start: Start,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They are asked again: what they do with a prompt may differ from what they said."""
    monkeypatch.setattr(recount, "RECOUNT_INTERVAL_S", 3600.0)
    worker = engine(folder)
    router = start(worker)
    until_known(router)
    ask(router)
    asked = len(worker.tokenized)
    assert router.metric("warmroute_prompts_miscounted_total", pool="default") == 0
    worker.more_tokens = 1
    with caplog.at_level(logging.WARNING, "warmroute.tokenizers"):
        ask(router)
        until(lambda: len(worker.tokenized) == 2 * asked)
        ask(router)
    assert router.metric("warmroute_prompts_miscounted_total", pool="default") == 2
    (line,) = caplog.messages
    assert "workers report other token counts than the router, 1 times" in line


def test_keywords_that_engines_are_given(engine: MakeEngine, start: Start, tmp_path: Path) -> None:
    """Workers differ unless the router has the same keywords."""
    template = "{{ (mood or 'no') if mood is defined else 'none' }}{{ messages[0].content }}"
    folder = make_model(tmp_path / "m", template)
    moody = make_model(tmp_path / "moody", "{{ 'glad' }}{{ messages[0].content }}")
    worker = engine(moody, [card("m", folder)])
    router = start(worker)
    until_asked(router, worker)
    assert states(router) == {worker.name: "differs"}
    again = start(worker, tokenizer={"keywords": {"mood": "glad"}})
    until_known(again)
    assert states(again) == {worker.name: "agrees"}


def test_nothing_of_a_prompt_is_told(
    engine: MakeEngine,
    start: Start,
    folder: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Logs, metrics and `/tokenizers` contain only text of our own probes."""
    worker = engine(make_model(tmp_path / "other", OTHER), [card("m", folder)])
    with caplog.at_level(logging.DEBUG):
        router = start(worker)
        until_asked(router, worker)
        ask(router, "SECRET words")
    told = router.http.get("/tokenizers").text + router.http.get("/metrics").text + caplog.text
    assert "SECRET" not in told
