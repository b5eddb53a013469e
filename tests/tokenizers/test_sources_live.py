"""Where a router takes tokenizers from, given what its workers report."""

import json
import logging
from pathlib import Path

import pytest

from router.prompt.prompts import UNKNOWN_MODEL
from router.reload import Source
from router.settings.model import Settings
from tests.reload.changing import change
from tests.support import until
from tests.tokenizers.asking import (
    ask,
    keyed,
    knows,
    states,
    tokenizer,
    tokenizers,
    until_known,
    workers,
)
from tests.tokenizers.conftest import MakeEngine, Start
from tests.tokenizers.engine import card
from tests.tokenizers.models import CHATML, OTHER, make_model


def test_a_folder_that_is_here_too(
    engine: MakeEngine, start: Start, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """`auto` uses it, verifies it with every worker, logs that once, and keys prompts by tokens."""
    with caplog.at_level(logging.INFO, "warmroute.tokenizers"):
        one, two = engine(folder), engine(folder)
        router = start(one, two)
        until_known(router)
        ask(router)
    assert (keyed(router, "tokens"), keyed(router, "text")) == (1, 0)
    assert states(router) == {one.name: "agrees", two.name: "agrees"}
    assert workers(router) == {"agrees": 2, "unverified": 0, "differs": 0}
    found = tokenizer(router)
    assert (found["source"], found["name"], found["keyed"]) == ("folder", str(folder), "tokens")
    (line,) = [text for text in caplog.messages if text.startswith("pool default: m: ")]
    assert f"from folder {folder}: its workers have it from there" in line
    assert line.endswith("(workers: 2 agrees)")


def test_workers_that_tell_nothing(engine: MakeEngine, start: Start) -> None:
    """If they report no usable source, prompts are keyed by text, and no worker is asked."""
    worker = engine(None, [card("m"), card("n", "toy"), card("gone", "/nowhere/model")])
    router = start(worker)
    until(lambda: tokenizer(router, "gone").get("reason", "").startswith("/nowhere"))
    assert tokenizer(router, "m")["reason"] == "its workers do not tell where they have it from"
    assert tokenizer(router, "n")["reason"] == "'toy' is neither a folder nor a hub id"
    for model in ("m", "n", "gone"):
        assert ask(router, model=model) == 200
    assert (keyed(router, "tokens"), keyed(router, "text")) == (0, 3)
    labels = {"pool": "default", "reason": UNKNOWN_MODEL}
    assert router.metric("warmroute_prompts_by_text_total", **labels) == 3
    assert not worker.tokenized


def test_a_strategy_that_reads_no_prompts(engine: MakeEngine, start: Start, folder: Path) -> None:
    """Such a strategy needs no tokenizer."""
    worker = engine(folder)
    router = start(worker, strategy="roundrobin")
    assert ask(router) == 200
    assert tokenizers(router) == []
    assert not worker.tokenized


def test_a_folder_of_the_settings(
    engine: MakeEngine, start: Start, folder: Path, tmp_path: Path
) -> None:
    """It applies to all models of its pool, whatever workers report; so do template and
    keywords."""
    engines = [engine(folder, [card("m", "/elsewhere")]), engine(folder, [card("n")])]
    template = tmp_path / "other.jinja"
    template.write_text(CHATML)
    make_model(folder, "{{ words }}{{ messages[0].content }}")  # the workers have read it already
    settings = {"source": str(folder), "chat_template": str(template), "keywords": {"words": "x"}}
    router = start(*engines, tokenizer=settings)
    until_known(router)
    until_known(router, "n")
    assert set(states(router).values()) == {"agrees"}
    (found,) = tokenizers(router)
    assert (found["models"], found["why"]) == (["m", "n"], "the settings say so")


def test_names_of_one_model_share_keys(engine: MakeEngine, start: Start, folder: Path) -> None:
    """Adapters have keys of their own, but the same tokenizer, which is verified once for all."""
    cards = [card("m", folder), card("m-latest", folder), card("tuned", "/lora/x", "m")]
    worker = engine(folder, [*cards, card("again", "/lora/x", "m")])
    router = start(worker)
    until_known(router, "tuned")
    known = router.door.fleet.pools[0].prompts.known
    assert known["m"] == known["m-latest"]
    assert len({known[name].identity for name in known}) == 3
    assert len({id(known[name].exact) for name in known}) == 1
    (found,) = tokenizers(router)
    assert found["models"] == ["again", "m", "m-latest", "tuned"]
    assert {asked["model"] for asked in worker.tokenized} == {"m"}


def test_settings_that_change(engine: MakeEngine, start: Start, folder: Path) -> None:
    """What no longer applies ends at once, and the rest stays. With `bytes` no worker is asked."""
    worker = engine(folder)
    router = start(worker, tokenizer="bytes")
    until(lambda: tokenizer(router))
    found = tokenizer(router)
    assert (found["source"], found["why"], found["keyed"]) == (
        "text",
        "the settings say so",
        "text",
    )
    assert ask(router) == 200
    assert not worker.tokenized
    change(router, worker.url, tokenizer=str(folder))
    until_known(router)
    before = router.door.fleet.pools[0].prompts.known["m"]
    strategy = {"name": "prefixaware", "memory": "1MiB"}
    change(router, worker.url, tokenizer=str(folder), strategy=strategy)
    assert router.door.fleet.pools[0].prompts.known["m"] == before
    change(router, worker.url, tokenizer="bytes")
    assert not knows(router)


def test_a_template_that_changes(
    engine: MakeEngine, start: Start, folder: Path, tmp_path: Path
) -> None:
    """It is read again with the settings, which are reloaded when the template file changes; until
    then workers differ."""
    template = tmp_path / "chat.jinja"
    template.write_text(OTHER)
    worker = engine(folder)
    settings = {"tokenizer": {"chat_template": str(template)}}
    router = start(worker, **settings)
    until(lambda: states(router) == {worker.name: "differs"})
    template.write_text(CHATML)
    change(router, worker.url, **settings)
    until_known(router)
    file = tmp_path / "settings.yaml"
    read = Settings.model_validate({"workers": [worker.url], **settings})
    assert Source(file).files(read) == [file, template]


def test_a_model_of_which_nothing_is_known(engine: MakeEngine, start: Start, folder: Path) -> None:
    """Engines do not use `tokenizer.json` for it, although there is one."""
    worker = engine(folder)
    config = {"architectures": ["MoonshotKimiaForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(config))
    router = start(worker)
    until(lambda: "in a way that is not known here" in tokenizer(router).get("reason", ""))
    assert ask(router) == 200
    assert not worker.tokenized
