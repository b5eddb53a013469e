"""Opened folders: those with equal contents share one tokenizer; what is unknown is tried first."""

import gc
import json
import sys
import weakref
from array import array
from pathlib import Path
from typing import Any

import pytest

from router.api.endpoints import ENDPOINTS
from router.rendering.folder import MAX_FILE_BYTES, BadFolder, ModelFolder
from router.rendering.tokenizer import load
from router.tokenizers.loader import (
    TokenizerCache,
    convert,
    load_both,
    open_tokenizer,
    try_templates,
)
from tests.rendering.other_formats import make_mistral, make_sentencepiece
from tests.rendering.templates import LLAMA
from tests.tokenizers.models import MERGES, OTHER, make_model

CHAT, COMPLETION = ENDPOINTS["/v1/chat/completions"], ENDPOINTS["/v1/completions"]
HELLO = json.dumps({"messages": [{"role": "user", "content": "hello"}]}).encode()


def test_equal_folders_share_what_is_equal(tmp_path: Path) -> None:
    """All of it, wherever and whenever they are opened; or the tokenizer, if they differ only in
    template or keywords."""
    cache = TokenizerCache()
    one, two = (cache.open(make_model(tmp_path / name)) for name in ("one", "two"))
    assert one is two is cache.open(tmp_path / "one", None, {})
    assert one.path == tmp_path / "one"
    other = cache.open(make_model(tmp_path / "other", OTHER))
    unthinking = cache.open(tmp_path / "one", None, {"thinking": False})
    merged = cache.open(make_model(tmp_path / "merged", merges=MERGES[:-1]))
    assert len({id(each) for each in (one, other, unthinking, merged)}) == 4
    assert one.opened is other.opened is unthinking.opened
    assert merged.opened is not one.opened


def test_what_nobody_uses_is_gone(tmp_path: Path) -> None:
    """It is freed, and can be opened again."""
    cache = TokenizerCache()
    folder = make_model(tmp_path / "a")
    gone = weakref.ref(cache.open(folder).opened)
    gc.collect()
    assert gone() is None
    assert cache.open(folder).library in {"fastokens", "tokenizers"}


def test_a_template_in_place_of_the_models(tmp_path: Path) -> None:
    """It is used for all chats, whatever templates the folder has."""
    folder = make_model(tmp_path / "a")
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "processor"}))
    template = tmp_path / "other.jinja"
    template.write_text("{{ messages[0].content }}")
    exact = TokenizerCache().open(folder, template).exact
    assert exact.ids(CHAT, HELLO) == exact.ids(COMPLETION, b'{"prompt": "hello"}')


@pytest.mark.parametrize(
    ("named", "sure"),
    [
        (None, True),
        ("PreTrainedTokenizerFast", True),
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


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    """The error says what is wrong with which file or folder."""
    cache = TokenizerCache()
    with pytest.raises(BadFolder, match="nowhere"):
        cache.open(tmp_path / "nowhere")
    with pytest.raises(BadFolder, match=r"gone\.jinja cannot be read"):
        cache.open(make_model(tmp_path / "plain"), tmp_path / "gone.jinja")
    for template, said in (
        ("{% for %}", "the chat template in"),
        (f"{{{{ {'(' * 3000}1{')' * 3000} }}}}", f"in {tmp_path}/a is nested too deeply"),
        ("{{ 'x' * (2 ** 40) }}", f"the chat template in {tmp_path}/a makes too much"),
    ):
        with pytest.raises(BadFolder, match=said):
            cache.open(make_model(tmp_path / "a", template))
    unread = make_model(tmp_path / "unread")
    (unread / "tokenizer.json").unlink()
    (unread / "tokenizer.json").symlink_to("/proc/self/mem")  # which nobody can read from
    with pytest.raises(BadFolder, match=f"^{unread} cannot be read: Input/output error"):
        cache.open(unread)


# Templates that are tried in another process.

ENDLESS = "{% for a in range(99999) %}" * 4 + "{% endfor %}" * 4


@pytest.mark.parametrize("template", [ENDLESS, "{{ 10 ** (10 ** 10) }}"])
def test_templates_that_never_end(template: str) -> None:
    """They are stopped, and refused."""
    with pytest.raises(BadFolder, match="was not done with our short chats after 2s"):
        try_templates(ModelFolder(Path("/m"), {"default": template}), {}, timeout=2.0)


@pytest.mark.parametrize(
    ("template", "where"),
    [
        ("{{ 'x' | center(6000000000) | length }}", "a few words"),
        ("{% for a in range(9999) %}{{ 'x' * 9999 }}{% endfor %}", "a few words"),
        ("{% if tools %}{{ '%9999999999d' % 1 }}{% endif %}", "the probe 'tools'"),
    ],
)
def test_templates_that_explode(template: str, where: str) -> None:
    """They are refused, and only the process that tried them took the memory."""
    with pytest.raises(BadFolder, match=f"the chat template in /m makes too much of {where}"):
        try_templates(ModelFolder(Path("/m"), {"default": template}), {})


def test_usual_templates_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that refuse some chats, or would explode where nobody gets; without a process for
    the trial, none does."""
    unused = "{% if false %}{{ 'x' * (2 ** 40) }}{% endif %}{{ raise_exception('no') }}"
    folder = ModelFolder(Path("/m"), {"default": LLAMA, "tool_use": unused})
    try_templates(folder, {"enable_thinking": True})
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(BadFolder, match="cannot be tried"):
        try_templates(folder, {})
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(BadFolder, match=r"ended the process that tried it \(1\)"):
        try_templates(folder, {})


# Large tokenizers, and those in other formats.

TEXT = "hello <|im_end|> there <|new|> 日本"
ADDED = {"300": {"content": "<|new|>", "special": True, "lstrip": True}}


@pytest.mark.parametrize(
    "config",
    [{}, {"added_tokens_decoder": ADDED}, {"split_special_tokens": True}],
    ids=["as it is", "with tokens of the configuration", "not by fastokens"],
)
def test_the_same_comes_of_a_trial(folder: Path, config: dict[str, Any]) -> None:
    """The same library, reason and tokens as when loaded in this process."""
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (here, why), there = load(folder), open_tokenizer(folder, 0)
    assert (type(there.tokenizer), there.why) == (type(here), why)
    for special in (False, True):
        found = there.tokenizer.encode(TEXT, special=special)  # type: ignore[union-attr]
        assert found == here.encode(TEXT, special=special)
    assert load_both(folder).why == why


def test_trials_that_fail(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is the same as without a trial. Without a process for it, large tokenizers are
    loaded in this one after all."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/nowhere/python")
        assert open_tokenizer(folder, 0).why == load(folder)[1]
        (folder / "tokenizer.json").rename(folder / "vocab.json")
        with pytest.raises(BadFolder, match="took too long to be read"):
            open_tokenizer(folder)
    (folder / "tokenizer.json").write_text("{}")
    for size in (0, 1 << 20):
        with pytest.raises(BadFolder, match=r"tokenizer\.json cannot be read: Model missing"):
            open_tokenizer(folder, size)


def test_mistrals_format(tmp_path: Path) -> None:
    """It is opened with Mistral's library, where the folder or the settings say so."""
    pytest.importorskip("mistral_common")
    folder = make_mistral(make_model(tmp_path / "a"), "tekken-v3")
    assert TokenizerCache().open(folder).library != "mistral-common"
    tokenizer = TokenizerCache().open(folder, mode="mistral")
    assert (tokenizer.library, tokenizer.why) == (
        "mistral-common",
        "the model is in Mistral's format",
    )
    assert tokenizer.exact.ids(CHAT, HELLO)


@pytest.mark.long
def test_sentencepiece(tmp_path: Path) -> None:
    """It is converted as engines do it: the tokens are SentencePiece's own, and BOS is known
    although no file names it. What cannot be converted is an error, on one line."""
    pytest.importorskip("transformers")
    sentencepiece = pytest.importorskip("sentencepiece")
    folder = make_sentencepiece(tmp_path / "llama")
    tokenizer = TokenizerCache().open(folder)
    assert tokenizer.why.startswith("made a tokenizer.json by Transformers")
    pieces = sentencepiece.SentencePieceProcessor(str(folder / "tokenizer.model"))
    for text in ("The weather in Zürich 👍", "one\n\ttab", "東京 привет"):
        asked = json.dumps({"prompt": text, "add_special_tokens": False}).encode()
        found = array("I", tokenizer.exact.ids(COMPLETION, asked)).tolist()
        assert found == pieces.encode(text)
    bos, *said = array("I", tokenizer.exact.ids(CHAT, HELLO)).tolist()
    assert (bos, pieces.decode(said)) == (1, "[user]hello")
    (folder / "tokenizer.model").write_bytes(b"nonsense")
    with pytest.raises(BadFolder, match="Transformers makes no tokenizer") as raised:
        TokenizerCache().open(folder)
    assert "\n" not in str(raised.value)


def test_what_is_not_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that are too large; and any without the extra, which is named."""
    with (tmp_path / "tokenizer.model").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    monkeypatch.setattr("router.tokenizers.loader.find_spec", lambda name: name)
    with pytest.raises(BadFolder, match=r"tokenizer\.model is over 256 MiB"):
        convert(tmp_path)
    monkeypatch.setattr("router.tokenizers.loader.find_spec", lambda _: None)
    with pytest.raises(BadFolder, match=r"pip install 'warmroute\[transformers\]'"):
        convert(tmp_path)
