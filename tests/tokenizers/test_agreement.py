"""Workers that make the same tokens, make different ones, or do not tell."""

import json
import logging
from array import array
from pathlib import Path
from typing import Any

import pytest

from router.api.endpoints import ENDPOINTS
from router.tokenizers.status import BLIND
from router.tokenizers.verify import describe
from tests.reload.changing import change
from tests.rendering.families import Family
from tests.rendering.families import folder as family_folder
from tests.rendering.test_media import IMAGE, SEEING, TOKENS, part
from tests.support import Router, until
from tests.tokenizers.asking import (
    CHAT,
    ask,
    exact,
    keyed,
    knows,
    states,
    tokenizer,
    until_asked,
    until_known,
    workers,
)
from tests.tokenizers.conftest import MakeEngine, Start
from tests.tokenizers.engine import Engine, card
from tests.tokenizers.models import OTHER, make_model


def test_a_worker_that_differs(
    engine: MakeEngine,
    start: Start,
    folder: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is logged once with the first difference; prompts are keyed by text until it agrees
    again. Nothing of a prompt is told anywhere: all texts are our own."""
    good, bad = engine(folder), engine(make_model(tmp_path / "other", OTHER), [card("m", folder)])
    with caplog.at_level(logging.DEBUG):
        router = start(good, bad)
        until_asked(router, good, bad)
        until(lambda: len(bad.tokenized) > 100)
        assert states(router) == {good.name: "agrees", bad.name: "differs"}
        assert workers(router) == {"agrees": 1, "unverified": 0, "differs": 1}
        assert not knows(router)
        ask(router, "SECRET words")
        assert (keyed(router, "tokens"), keyed(router, "text")) == (0, 1)
        shown = router.http.get("/tokenizers").text + router.http.get("/metrics").text
        bad.loads(folder)
        until_known(router)
    assert "SECRET" not in shown + caplog.text
    ours = [one for one in caplog.records if one.name == "warmroute.tokenizers"]
    (warning,) = [one.getMessage() for one in ours if one.levelname == "WARNING"]
    said = f'pool default: worker {bad.name} tokenizes m differently: probe "chat", token 11 '
    assert warning.startswith(said)
    assert """after 'er\\nHello!<|im_end|>': 201 '\\n' here, 1 '<|im_start|>' there""" in warning
    assert warning.endswith("prompts are keyed by their text until all workers agree")
    assert f"pool default: worker {bad.name} agrees on m again" in caplog.messages


def test_the_first_difference(folder: Path) -> None:
    """With its position, both tokens, and the text before it; tokens may also just end."""
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    ours, theirs, short = (
        array("I", [vocabulary[token] for token in tokens]).tobytes()
        for tokens in (("he", "ll", "o"), ("he", "ll", "er"), ("he", "ll"))
    )
    found = describe("plain", ours, theirs, folder)
    assert (found.index, found.before) == (2, "hell")
    assert (found.ours, found.ours_text) == (vocabulary["o"], "o")
    assert (found.theirs, found.theirs_text) == (vocabulary["er"], "er")
    ended = describe("plain", ours, short, None)
    assert (ended.index, ended.theirs, ended.before) == (2, None, "")
    assert str(ended).endswith(" here, the end there")


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


NO_TOKENS = "/tokenize answered something else than tokens"
#: Status and body of what workers answer, and what is said of them.
SILENT: list[tuple[int, bytes, str]] = [
    *((status, b"{}", f"/tokenize answered {status}") for status in (401, 404, 405, 500, 503)),
    (400, b"{}", "it refuses all that could be compared"),
    *((200, garbage, NO_TOKENS) for garbage in (b"tokens", b"[]", b"\xff", b"{}")),
    *((200, b'{"tokens": [%b]}' % token, NO_TOKENS) for token in (b'"a"', b"-1", b"99999999999")),
]


def test_workers_that_do_not_tell(
    engine: MakeEngine, start: Start, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are unverified, which is no difference, until they tell. Workers are sent their key."""
    monkeypatch.setenv("WORKER_KEY", "sk-0123456789abcdef")
    good, silent = engine(folder), [engine(folder) for _ in SILENT]
    for worker, (status, garbage, _) in zip(silent, SILENT, strict=True):
        worker.status, worker.garbage = status, garbage
    router = start(
        workers=[{"url": one.url, "api_key": "${WORKER_KEY}"} for one in (good, *silent)]
    )
    until_known(router)
    why = {worker.name: why for worker, (_, _, why) in zip(silent, SILENT, strict=True)}
    shown = {one["name"]: one for one in tokenizer(router)["workers"]}
    assert shown.pop(good.name)["state"] == "agrees"
    assert {name: one["why"] for name, one in shown.items()} == why
    assert {one["state"] for one in shown.values()} == {"unverified"}
    assert workers(router) == {"agrees": 1, "unverified": len(silent), "differs": 0}
    assert set(good.keys) == {"Bearer sk-0123456789abcdef"}
    for worker in silent:
        worker.status, worker.garbage = 200, None
    until(lambda: set(states(router).values()) == {"agrees"})


def test_a_worker_that_does_not_answer(
    engine: MakeEngine, start: Start, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The router does not wait for longer than the time limit."""
    monkeypatch.setattr("router.tokenizers.worker_tokenizer.ANSWERS_TIMEOUT_S", 0.1)
    worker = engine(folder)
    worker.hold.clear()
    router = start(worker)
    until_known(router)
    assert states(router) == {worker.name: "unverified"}
    worker.hold.set()
    until(lambda: states(router) == {worker.name: "agrees"})


@pytest.mark.parametrize(
    ("template", "tokens"),
    [("{{ raise_exception('no') if messages|length > 1 }}{{ messages[0].content }}", 2), (None, 1)],
)
def test_what_both_refuse_is_no_difference(
    engine: MakeEngine, start: Start, tmp_path: Path, template: str | None, tokens: int
) -> None:
    """A template refuses some chats; without any, plain prompts are keyed by tokens, chats by
    text."""
    worker = engine(make_model(tmp_path / "m", template))
    router = start(worker)
    until_known(router)
    assert states(router) == {worker.name: "agrees"}
    ask(router)
    assert router.http.post("/v1/completions", json={"model": "m", "prompt": "x"}).is_success
    assert (keyed(router, "tokens"), keyed(router, "text")) == (tokens, 2 - tokens)


def test_a_worker_that_joins(
    engine: MakeEngine, start: Start, folder: Path, tmp_path: Path
) -> None:
    """It is asked when it joins; if it differs trust ends, and returns when it leaves."""
    good, bad = engine(folder), engine(make_model(tmp_path / "other", OTHER), [card("m", folder)])
    router = start(good)
    until_known(router)
    change(router, good.url, bad.url)
    until(lambda: not knows(router))
    assert tokenizer(router)["reason"] == "a worker tokenizes differently"
    change(router, good.url)
    until_known(router)
    assert states(router) == {good.name: "agrees"}
    assert workers(router) == {"agrees": 1, "unverified": 0, "differs": 0}


def test_a_model_that_changes(
    engine: MakeEngine, start: Start, folder: Path, tmp_path: Path
) -> None:
    """A change under the same name is noticed, and changes the keys. A changed folder is read again
    when a worker that uses it comes back."""
    worker = engine(folder)
    router = start(worker)
    until_known(router)
    before = exact(router)
    other = make_model(tmp_path / "other", OTHER)
    worker.loads(other)
    until(lambda: exact(router) not in (None, before))
    assert router.door.fleet.pools[0].prompts.known["m"].identity == str(other)
    assert tokenizer(router)["name"] == str(other)
    between = exact(router)
    worker.volume = engine(folder).volume
    make_model(other)
    worker.well = False
    until(lambda: not router.worker().ready)
    worker.well = True
    until(lambda: exact(router) not in (None, between))
    until(lambda: states(router) == {worker.name: "agrees"})


def test_workers_that_count_other_tokens(
    engine: MakeEngine, start: Start, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They are asked again: what they do with a prompt may differ from what they said."""
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
    worker = engine(
        make_model(tmp_path / "moody", "{{ 'glad' }}{{ messages[0].content }}"), [card("m", folder)]
    )
    router = start(worker)
    until_asked(router, worker)
    assert states(router) == {worker.name: "differs"}
    again = start(worker, tokenizer={"keywords": {"mood": "glad"}})
    until_known(again)
    assert states(again) == {worker.name: "agrees"}


#: Tokens that stand for an image in the engine's prompt.
PATCHES = [1000, 1001, 1001, 1002]


class Seeing(Engine):
    """A worker with a vision model."""

    first: list[int] = []  # noqa: RUF012 - set by a test
    """Tokens that it puts before a chat with an image."""

    def ids(self, path: str, asked: dict[str, Any]) -> list[int] | None:
        """Return the tokens of a request, with or without images."""
        found = super().ids(path, asked)
        if found is not None or "image_url" not in json.dumps(asked):
            return found
        assert self.volume is not None
        head = self.volume.exact.head(ENDPOINTS[CHAT], json.dumps(asked).encode())
        return [*self.first, *array("I", head.ids), *PATCHES]


def look(router: Router) -> None:
    """Ask about an image."""
    content = [part("What is this? " * 40), IMAGE]
    chat = {"model": "m", "messages": [{"role": "user", "content": content}]}
    assert router.http.post(CHAT, json=chat).status_code == 200


def test_chats_with_images(engine: MakeEngine, start: Start, tmp_path: Path) -> None:
    """They are keyed by the tokens before the first image, if all workers agree on these; their
    total length is not taken as known. Texts are not affected."""
    seeing = family_folder(tmp_path / "seeing", Family(SEEING, TOKENS, eos="<|im_end|>"))
    one, other = (engine(seeing, kind=Seeing) for _ in range(2))
    router = start(one)
    until_known(router)
    assert tokenizer(router)["workers"][0]["why"].endswith("probes, and before an image")
    look(router)
    assert (keyed(router, "tokens"), keyed(router, "text")) == (1, 0)
    assert router.metric("warmroute_prompts_miscounted_total", pool="default") == 0
    other.first = [7]  # type: ignore[attr-defined]
    change(router, one.url, other.url)
    until_asked(router, one, other)
    assert set(states(router).values()) == {"agrees"}
    look(router)
    assert (keyed(router, "tokens"), keyed(router, "text")) == (1, 1)
    reason = "parts that are not text"
    until(lambda: router.metric("warmroute_prompts_by_text_total", pool="default", reason=reason))
