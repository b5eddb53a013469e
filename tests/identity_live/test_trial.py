"""Large tokenizers are tested in a separate process, with the same result."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from router.rendering import tokenizer as trial
from router.rendering.folder import BadFolder
from router.rendering.tokenizer import Outcome, load, opened, tried

TEXT = "hello <|im_end|> there <|new|> 日本"
ADDED = {"300": {"content": "<|new|>", "special": True, "lstrip": True}}


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Treat all tokenizers as large; returns the outcome of each trial."""
    outcomes: list[object] = []
    real: Callable[[Path], object] = trial._elsewhere

    def elsewhere(path: Path) -> object:
        outcomes.append(real(path))
        return outcomes[-1]

    monkeypatch.setattr(trial, "SMALL", 0)
    monkeypatch.setattr(trial, "_elsewhere", elsewhere)
    return outcomes


@pytest.mark.parametrize(
    "config",
    [{}, {"added_tokens_decoder": ADDED}, {"split_special_tokens": True}],
    ids=["as it is", "with tokens of the configuration", "not by fastokens"],
)
def test_the_same_comes_of_it(folder: Path, trials: list[object], config: dict[str, Any]) -> None:
    """The same library, reason and tokens as when loaded in this process."""
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (here, why), (there, reason, _) = load(folder), opened(folder)
    assert trials == [tried(folder)]
    assert (type(there), reason) == (type(here), why)
    for special in (False, True):
        assert there.encode(TEXT, special=special) == here.encode(TEXT, special=special)


def test_small_ones_are_read_where_they_are(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting a process takes longer than reading a small file."""
    monkeypatch.delattr(trial, "subprocess")
    assert opened(folder)[1] == load(folder)[1]


def test_a_trial_that_fails(
    folder: Path, trials: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the tokenizer is loaded in this process after all."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert opened(folder)[1] == load(folder)[1]
    assert trials == [None]


def test_a_file_that_is_none(folder: Path, trials: list[object]) -> None:
    """The error is the same as without a trial."""
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(BadFolder, match=r"tokenizer\.json cannot be read"):
        opened(folder)
    assert [outcome.refusal for outcome in trials if isinstance(outcome, Outcome)] == [
        f"{folder / 'tokenizer.json'} cannot be read: Model missing. at line 1 column 2"
    ]
