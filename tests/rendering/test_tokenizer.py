"""Which library tokenizes, and what the configuration adds to a tokenizer."""

from array import array
from pathlib import Path
from typing import Any

import fastokens  # type: ignore[import-untyped]
import pytest

from router.rendering.folder import BadFolder
from router.rendering.tokenizer import FastTokenizer, ReferenceTokenizer, TextTokenizer, load
from tests.rendering.families import FAMILIES, folder, train

CHATML = FAMILIES["chatml"]
FLAGS = {"normalized": False, "single_word": False, "special": True}
START = {"content": "<|im_start|>", "lstrip": True, "rstrip": True, **FLAGS}


def encoded(found: TextTokenizer, text: str) -> list[int]:
    """Return the ids of a text."""
    return array("I", found.encode(text, special=False)).tolist()


@pytest.mark.parametrize("name", FAMILIES)
def test_both_give_the_same_ids(name: str, tmp_path: Path) -> None:
    """For every family's tokenizer, so the faster one is taken; the reason says so."""
    made = train(FAMILIES[name])
    found, why = load(folder(tmp_path, FAMILIES[name], made))
    assert isinstance(found, FastTokenizer)
    assert (found.name, why) == ("fastokens", "fastokens and tokenizers agree")
    for special in (True, False):
        for text in ("", "Hi", "<s>[INST] Zürich 👍<|im_start|> \n", "a" * 999):
            expected = ReferenceTokenizer(made).encode(text, special=special)
            assert found.encode(text, special=special) == expected


class _Wrong:
    """fastokens, with one extra id for texts that contain `what`."""

    def __init__(self, made: Any, what: str) -> None:
        self._made = made
        self._what = what

    def __getattr__(self, name: str) -> Any:
        return getattr(self._made, name)

    def encode_batch_flat(self, texts: list[str], *, add_special_tokens: bool) -> list[bytes]:
        found = self._made.encode_batch_flat(texts, add_special_tokens=add_special_tokens)
        more = b"\1\0\0\0" if self._what in texts[0] else b""
        return [one + more for one in found]


@pytest.mark.parametrize("what", ["👩", "b<|im_start|><|im_start|>", None])
def test_the_reference_is_taken_where_they_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str | None
) -> None:
    """They differ on a sample, or on one of the model's own special tokens; or fastokens fails,
    whatever it raises, which the reason quotes."""
    real = fastokens.Tokenizer

    class Library:
        @staticmethod
        def from_file(path: str) -> _Wrong:
            if what is None:
                raise RuntimeError(f"unknown normalizer in {Path(path).name}")
            return _Wrong(real.from_file(path), what)

    monkeypatch.setattr(fastokens, "Tokenizer", Library)
    found, why = load(folder(tmp_path, CHATML))
    assert found.name == "tokenizers"
    failed = "fastokens does not take it (unknown normalizer in tokenizer.json)"
    assert why.startswith("fastokens gives other ids, first for " if what else failed)


def test_flags_of_special_tokens(tmp_path: Path) -> None:
    """The configuration's flags win; here spaces around a token become part of it."""
    plain, _ = load(folder(tmp_path / "a", CHATML))
    told, _ = load(folder(tmp_path / "b", CHATML, config={"added_tokens_decoder": {"1": START}}))
    assert len(encoded(plain, "x <|im_start|> y")) > len(encoded(told, "x <|im_start|> y"))
    assert encoded(told, "x <|im_start|> y") == encoded(plain, "x<|im_start|>y")


def test_tokens_that_only_the_configuration_has(tmp_path: Path) -> None:
    """They come after the vocabulary: first those with an index, then those with only a name."""
    size = train(CHATML).get_vocab_size()
    new = {**START, "content": "<new>", "lstrip": False, "rstrip": False}
    config = {
        "pad_token": "[PAD]",
        "unk_token": {"__type": "AddedToken", "content": "[UNK]", "lstrip": True},
        "additional_special_tokens": ["<x>", "<|im_end|>"],
        "added_tokens_decoder": {"9": {**new, "content": "<newer>"}, "7": new},
    }
    found, _ = load(folder(tmp_path, CHATML, config=config))
    assert found.name == "fastokens"
    ids = encoded(found, "<new><newer> [UNK][PAD]<x><|im_end|>")
    assert ids == [size, size + 1, size + 2, size + 3, size + 4, 2]


def test_special_tokens_may_be_taken_apart(tmp_path: Path) -> None:
    """Only the reference can split special tokens."""
    found, why = load(folder(tmp_path, CHATML, config={"split_special_tokens": True}))
    assert found.name == "tokenizers"
    assert why == "special tokens are split, which fastokens does not do"
    assert len(encoded(found, "<|im_start|>")) > 1


def test_no_truncation_and_no_padding(tmp_path: Path) -> None:
    """Engines do neither with prompts, whatever the file says."""
    made = train(CHATML)
    made.enable_truncation(3)
    made.enable_padding(length=64)
    path = folder(tmp_path, CHATML, made)
    plain = ReferenceTokenizer(train(CHATML)).encode("one two three four", special=True)
    assert load(path)[0].encode("one two three four", special=True) == plain


@pytest.mark.parametrize("content", [None, '{"model": {"type": "Telepathy"}}'])
def test_bad_tokenizers_are_named(tmp_path: Path, content: str | None) -> None:
    """The file is missing or invalid."""
    path = folder(tmp_path, CHATML)
    (path / "tokenizer.json").unlink()
    if content is not None:
        (path / "tokenizer.json").write_text(content)
    with pytest.raises(BadFolder, match=r"tokenizer\.json cannot be read"):
        load(path)


@pytest.mark.parametrize("given", [{"x": START}, {"1": {}}, {"1": 5}, [START]])
def test_bad_added_tokens_are_named(tmp_path: Path, given: object) -> None:
    """The error names field and file."""
    path = folder(tmp_path, CHATML, config={"added_tokens_decoder": given})
    with pytest.raises(BadFolder, match="added_tokens_decoder of tokenizer_config"):
        load(path)
