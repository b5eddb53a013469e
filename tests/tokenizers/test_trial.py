"""Unknown templates, and large tokenizers, are tried in a separate process."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from router.rendering.errors import BadFolder
from router.rendering.folder import ModelFolder
from router.rendering.tokenizer import load
from router.tokenizers.loader import TokenizerCache
from router.tokenizers.trial import load_both, open_tokenizer, try_templates
from tests.rendering.templates import LLAMA
from tests.tokenizers.models import make_model

TEXT = "hello <|im_end|> there <|new|> 日本"
ADDED = {"300": {"content": "<|new|>", "special": True, "lstrip": True}}
ENDLESS = "{% for a in range(99999) %}" * 4 + "{% endfor %}" * 4


@pytest.mark.parametrize("template", [ENDLESS, "{{ 10 ** (10 ** 10) }}"])
def test_templates_that_never_end(template: str) -> None:
    """They are stopped, and refused."""
    with pytest.raises(BadFolder, match="was not done with our short chats after 5s"):
        try_templates(ModelFolder(Path("/m"), {"default": template}), {}, timeout=5.0)


@pytest.mark.parametrize(
    ("template", "where"),
    [
        ("{{ '=' * (2 ** 40) }}", "a few words"),
        ("{{ 'x' | center(6000000000) | length }}", "a few words"),
        ("{{ '%9999999999d' % 1 }}", "a few words"),
        ("{% for a in range(9999) %}{{ 'x' * 9999 }}{% endfor %}", "a few words"),
        ("{% if tools %}{{ 'x' * (2 ** 40) }}{% endif %}", "the probe 'tools'"),
    ],
)
def test_templates_that_explode(template: str, where: str) -> None:
    """They are refused, and only the process that tried them took the memory."""
    with pytest.raises(BadFolder, match=f"the chat template in /m makes too much of {where}"):
        try_templates(ModelFolder(Path("/m"), {"default": template}), {})


def test_hostile_templates_are_not_opened(tmp_path: Path) -> None:
    """Nothing of a template is computed before it was tried, not even where it is compiled."""
    folder = make_model(tmp_path / "a", "{% if false %}{{ 'x' * (2 ** 40) }}{% endif %}ok")
    assert TokenizerCache().open(folder).library
    folder = make_model(tmp_path / "b", "{{ 'x' * (2 ** 40) }}")
    with pytest.raises(BadFolder, match=f"the chat template in {folder} makes too much"):
        TokenizerCache().open(folder)


def test_usual_templates_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that refuse some chats; without a process for the trial, none does."""
    folder = ModelFolder(Path("/m"), {"default": LLAMA, "tool_use": "{{ raise_exception('no') }}"})
    try_templates(folder, {"enable_thinking": True})
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(BadFolder, match="cannot be tried"):
        try_templates(folder, {})


@pytest.mark.parametrize(
    "config",
    [{}, {"added_tokens_decoder": ADDED}, {"split_special_tokens": True}],
    ids=["as it is", "with tokens of the configuration", "not by fastokens"],
)
def test_the_same_comes_of_it(folder: Path, config: dict[str, Any]) -> None:
    """The same library, reason and tokens as when loaded in this process."""
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (here, why), (there, reason, _) = load(folder), open_tokenizer(folder, 0)
    assert (type(there), reason) == (type(here), why)
    for special in (False, True):
        assert there.encode(TEXT, special=special) == here.encode(TEXT, special=special)
    assert load_both(folder).why == why


def test_without_a_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tokenizers need none; large ones are then loaded in this process after all."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert open_tokenizer(folder)[1] == open_tokenizer(folder, 0)[1] == load(folder)[1]


def test_a_file_that_is_none(folder: Path) -> None:
    """The error is the same as without a trial."""
    (folder / "tokenizer.json").write_text("{}")
    for size in (0, 1 << 20):
        with pytest.raises(BadFolder, match=r"tokenizer\.json cannot be read: Model missing"):
            open_tokenizer(folder, size)
