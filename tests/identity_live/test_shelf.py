"""Opened folders: those with equal contents share one tokenizer."""

import gc
import json
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from router.api.endpoints import ENDPOINTS
from router.rendering.folder import LARGEST, BadFolder, ModelFolder
from router.tokenizers.loader import Shelf
from tests.identity_live.models import MERGES, OTHER, make_model

CHAT = json.dumps({"messages": [{"role": "user", "content": "hello"}]}).encode()


def test_equal_folders(tmp_path: Path) -> None:
    """Wherever they are, and whenever they are opened."""
    shelf = Shelf()
    one, two = (shelf.open(make_model(tmp_path / name)) for name in ("one", "two"))
    assert one is two is shelf.open(tmp_path / "one", None, {})
    assert one.path == tmp_path / "one"


def test_what_differs_only_in_its_chats(tmp_path: Path) -> None:
    """Folders that differ only in template or keywords share the tokenizer."""
    shelf = Shelf()
    one, two = shelf.open(make_model(tmp_path / "a")), shelf.open(make_model(tmp_path / "b", OTHER))
    three = shelf.open(tmp_path / "a", None, {"thinking": False})
    four = shelf.open(make_model(tmp_path / "c", merges=MERGES[:-1]))
    assert len({id(each) for each in (one, two, three, four)}) == 4
    assert one.opened is two.opened is three.opened
    assert four.opened is not one.opened


def test_a_template_in_place_of_the_models(tmp_path: Path) -> None:
    """It is used for all chats, whatever templates the folder has."""
    shelf = Shelf()
    folder = make_model(tmp_path / "a")
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "processor"}))
    template = tmp_path / "other.jinja"
    template.write_text("{{ messages[0].content }}")
    volume = shelf.open(folder, template)
    plain = volume.exact.ids(ENDPOINTS["/v1/completions"], b'{"prompt": "hello"}')
    assert volume.exact.ids(ENDPOINTS["/v1/chat/completions"], CHAT) == plain


def test_one_that_never_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not block other folders, and those who want the same one do not wait forever."""
    shelf, begun, going_on = Shelf(), threading.Event(), threading.Event()
    library = shelf._library

    def stuck(folder: ModelFolder, files: Mapping[str, str], *, by_mistral: bool) -> Any:
        if folder.path.name == "stuck":
            begun.set()
            assert going_on.wait(20)
        return library(folder, files, by_mistral=by_mistral)

    monkeypatch.setattr(shelf, "_library", stuck)
    folder = make_model(tmp_path / "stuck")
    thread = threading.Thread(target=shelf.open, args=(folder,), daemon=True)
    thread.start()
    assert begun.wait(20)
    monkeypatch.setattr("router.tokenizers.loader.PATIENCE_S", 0.01)
    try:
        assert shelf.open(make_model(tmp_path / "other", OTHER)).path.name == "other"
        with pytest.raises(BadFolder, match=r"stuck is still being opened, for more than 0\.01s"):
            shelf.open(folder)
    finally:
        going_on.set()
        thread.join(20)
    assert shelf.open(folder).path == folder


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
    assert Shelf().open(folder).sure is sure


@pytest.mark.parametrize("name", ["tokenizer.json", "tekken.json"])
def test_what_is_too_large(tmp_path: Path, name: str) -> None:
    """The file is not even read."""
    folder = make_model(tmp_path / "a")
    with (folder / name).open("ab") as file:
        file.truncate(LARGEST + 1)  # a sparse file, which takes no space
    with pytest.raises(BadFolder, match=f"{name} is over 256 MiB"):
        Shelf().open(folder)


def test_a_template_that_is_too_deep(tmp_path: Path) -> None:
    """The error names the folder."""
    folder = make_model(tmp_path / "a", f"{{{{ {'(' * 3000}1{')' * 3000} }}}}")
    with pytest.raises(BadFolder, match=f"in {folder} is nested too deeply"):
        Shelf().open(folder)


def test_what_nobody_uses_is_gone(tmp_path: Path) -> None:
    """It is freed, and can be opened again."""
    shelf = Shelf()
    folder = make_model(tmp_path / "a")
    gone = weakref.ref(shelf.open(folder).opened)
    gc.collect()
    assert gone() is None
    assert not shelf._opened
    assert not shelf._volumes
    assert shelf.open(folder).library in {"fastokens", "tokenizers"}


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    """The error says what is wrong with which file."""
    shelf = Shelf()
    with pytest.raises(BadFolder, match="nowhere"):
        shelf.open(tmp_path / "nowhere")
    folder = make_model(tmp_path / "a", "{% for %}")
    with pytest.raises(BadFolder, match="the chat template in"):
        shelf.open(folder)
    with pytest.raises(BadFolder, match=r"gone\.jinja cannot be read"):
        shelf.open(make_model(tmp_path / "b"), tmp_path / "gone.jinja")
