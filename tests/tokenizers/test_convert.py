"""Tokenizers in other formats are converted to a `tokenizer.json`, as engines do it."""

import json
from array import array
from pathlib import Path

import pytest

from router.api.endpoints import ENDPOINTS
from router.rendering.errors import BadFolder
from router.rendering.folder import MAX_FILE_BYTES
from router.tokenizers.loader import TokenizerCache
from router.tokenizers.trial import convert
from tests.rendering.other_formats import make_sentencepiece

pytest.importorskip("transformers")
sentencepiece = pytest.importorskip("sentencepiece")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder without a `tokenizer.json`."""
    return make_sentencepiece(tmp_path / "llama")


def test_sentencepiece(folder: Path) -> None:
    """The tokens are SentencePiece's own; BOS is known although no file names it."""
    volume = TokenizerCache().open(folder)
    assert volume.why.startswith("made a tokenizer.json by Transformers")
    pieces = sentencepiece.SentencePieceProcessor(str(folder / "tokenizer.model"))
    for text in ("The weather in Zürich 👍", "one\n\ttab", "東京 привет"):
        asked = {"prompt": text, "add_special_tokens": False}
        found = volume.exact.ids(ENDPOINTS["/v1/completions"], json.dumps(asked).encode())
        assert array("I", found).tolist() == pieces.encode(text)
    chat = {"messages": [{"role": "user", "content": "Hi"}]}
    found = volume.exact.ids(ENDPOINTS["/v1/chat/completions"], json.dumps(chat).encode())
    bos, *said = array("I", found).tolist()
    assert (bos, pieces.decode(said)) == (1, "[user]Hi")


def test_what_cannot_be_made_into_one(folder: Path) -> None:
    """The error says so, on one line."""
    (folder / "tokenizer.model").write_bytes(b"nonsense")
    with pytest.raises(BadFolder) as raised:
        TokenizerCache().open(folder)
    assert "Transformers makes no tokenizer.json of" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_without_the_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra to install."""
    monkeypatch.setattr("router.tokenizers.trial.find_spec", lambda _: None)
    with pytest.raises(BadFolder, match=r"pip install 'warmroute\[transformers\]'"):
        convert(folder)


def test_files_that_are_too_large(folder: Path) -> None:
    """They are not read."""
    with (folder / "tokenizer.model").open("ab") as file:
        file.truncate(MAX_FILE_BYTES + 1)  # a sparse file, which takes no space
    with pytest.raises(BadFolder, match=r"tokenizer\.model is over 256 MiB"):
        convert(folder)
