"""Opened folders: those with equal contents share one tokenizer."""

import gc
import json
import weakref
from pathlib import Path

import pytest

from router.api.endpoints import ENDPOINTS
from router.rendering.errors import BadFolder
from router.rendering.folder import MAX_FILE_BYTES
from router.tokenizers.loader import TokenizerCache
from tests.tokenizers.models import MERGES, OTHER, make_model

CHAT = json.dumps({"messages": [{"role": "user", "content": "hello"}]}).encode()


def test_equal_folders(tmp_path: Path) -> None:
    """Wherever they are, and whenever they are opened."""
    shelf = TokenizerCache()
    one, two = (shelf.open(make_model(tmp_path / name)) for name in ("one", "two"))
    assert one is two is shelf.open(tmp_path / "one", None, {})
    assert one.path == tmp_path / "one"


def test_what_differs_only_in_its_chats(tmp_path: Path) -> None:
    """Folders that differ only in template or keywords share the tokenizer."""
    shelf = TokenizerCache()
    one, two = shelf.open(make_model(tmp_path / "a")), shelf.open(make_model(tmp_path / "b", OTHER))
    three = shelf.open(tmp_path / "a", None, {"thinking": False})
    four = shelf.open(make_model(tmp_path / "c", merges=MERGES[:-1]))
    assert len({id(each) for each in (one, two, three, four)}) == 4
    assert one.opened is two.opened is three.opened
    assert four.opened is not one.opened


def test_a_template_in_place_of_the_models(tmp_path: Path) -> None:
    """It is used for all chats, whatever templates the folder has."""
    shelf = TokenizerCache()
    folder = make_model(tmp_path / "a")
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "processor"}))
    template = tmp_path / "other.jinja"
    template.write_text("{{ messages[0].content }}")
    volume = shelf.open(folder, template)
    plain = volume.exact.ids(ENDPOINTS["/v1/completions"], b'{"prompt": "hello"}')
    assert volume.exact.ids(ENDPOINTS["/v1/chat/completions"], CHAT) == plain


@pytest.mark.parametrize(
    ("named", "sure"),
    [
        (None, True),
        ("PreTrainedTokenizerFast", True),
        ("TokenizersBackend", True),
        ("LlamaTokenizerFast", False),
        ("Qwen2Tokenizer", False),
    ],
)
def test_what_engines_build_by_its_class(tmp_path: Path, named: str | None, *, sure: bool) -> None:
    """Engines may build another tokenizer than the file's, so a worker has to confirm it."""
    folder = make_model(tmp_path / "a")
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"tokenizer_class": named}))
    assert TokenizerCache().open(folder).sure is sure


@pytest.mark.parametrize("name", ["tokenizer.json", "tekken.json"])
def test_what_is_too_large(tmp_path: Path, name: str) -> None:
    """The file is not even read."""
    folder = make_model(tmp_path / "a")
    with (folder / name).open("ab") as file:
        file.truncate(MAX_FILE_BYTES + 1)  # a sparse file, which takes no space
    with pytest.raises(BadFolder, match=f"{name} is over 256 MiB"):
        TokenizerCache().open(folder)


def test_a_template_that_is_too_deep(tmp_path: Path) -> None:
    """The error names the folder."""
    folder = make_model(tmp_path / "a", f"{{{{ {'(' * 3000}1{')' * 3000} }}}}")
    with pytest.raises(BadFolder, match=f"in {folder} is nested too deeply"):
        TokenizerCache().open(folder)


def test_what_nobody_uses_is_gone(tmp_path: Path) -> None:
    """It is freed, and can be opened again."""
    shelf = TokenizerCache()
    folder = make_model(tmp_path / "a")
    gone = weakref.ref(shelf.open(folder).opened)
    gc.collect()
    assert gone() is None
    assert shelf.open(folder).library in {"fastokens", "tokenizers"}


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    """The error says what is wrong with which file."""
    shelf = TokenizerCache()
    with pytest.raises(BadFolder, match="nowhere"):
        shelf.open(tmp_path / "nowhere")
    folder = make_model(tmp_path / "a", "{% for %}")
    with pytest.raises(BadFolder, match="the chat template in"):
        shelf.open(folder)
    with pytest.raises(BadFolder, match=r"gone\.jinja cannot be read"):
        shelf.open(make_model(tmp_path / "b"), tmp_path / "gone.jinja")
