"""The `tokenizer` setting, as operators write it."""

from pathlib import Path

import pytest

from router.processes.child import opened, seal
from router.settings.loader import loads
from router.settings.tokenizer import TokenizerSettings
from tests.settings.wrong import WORKER, refuses


def read(text: str, folder: Path | None = None) -> TokenizerSettings:
    """Return what is read of a value."""
    return loads(f"{WORKER}tokenizer: {text}\n", folder=folder).tokenizer


@pytest.mark.parametrize("source", ["auto", "bytes", "worker", "org/name", "Org-1/na.me_2"])
def test_words_and_hub_ids(source: str) -> None:
    """These are kept as they are, alone or in a mapping."""
    assert read(source).source == source
    assert read(f"{{source: {source}}}").source == source


def test_folders_are_resolved_from_the_settings_file(tmp_path: Path) -> None:
    """In each process; a name that is no folder there is a hub id."""
    folder = tmp_path / "models" / "llama"
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text("{}")
    for text in ("./models/llama", "models/llama", str(folder), f"{folder}/"):
        assert read(text, tmp_path).source == str(folder)
    assert read("models/other", tmp_path).source == "models/other"
    text = f"{WORKER}tokenizer: {{source: models/llama, keywords: {{a: [1, true, x]}}}}\n"
    settings = loads(text, folder=tmp_path)
    assert opened(seal(settings)).tokenizer == settings.tokenizer


def test_every_key_at_once(tmp_path: Path) -> None:
    """With a template, which is read to check it."""
    (tmp_path / "chat.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    text = "{chat_template: chat.jinja, keywords: {thinking: false}, forward_token_ids: true}"
    assert read(text, tmp_path) == TokenizerSettings(
        chat_template=tmp_path / "chat.jinja",
        keywords={"thinking": False},
        forward_token_ids=True,
    )


NOT_ONE = "is not a tokenizer: write auto, bytes, worker, a folder"


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("byte", "", 'did you mean "bytes"?'),
        *((text, "", NOT_ONE) for text in ("zebra", "5", "''", "[auto]", "a/b/c", "a/b--c")),
        *((text, "", NOT_ONE) for text in ("a/../b", "https://hub/a/b")),
        ('"/a\\0b"', "", "does not exist"),
        ("/nowhere", "", 'folder "/nowhere" does not exist'),
        ("{source: byte}", ".source", 'did you mean "bytes"?'),
        ("{sorce: auto}", ".sorce", 'did you mean "source"?'),
        ("{keywords: 3}", ".keywords", "must be a mapping"),
        ("{forward_token_ids: 1}", ".forward_token_ids", "must be true or false"),
        ("{source: bytes, keywords: {a: 1}}", ".keywords", "is of no use with bytes"),
        ("{source: worker, keywords: {a: 1}}", ".keywords", "is of no use with worker"),
        ("./empty", "", "holds no tokenizer.json and no other tokenizer"),
        ("{chat_template: none}", ".chat_template", "is not a plain file"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, place: str, words: str) -> None:
    """The message has the line, the key and a suggestion."""
    (tmp_path / "empty").mkdir()
    refuses(f"{WORKER}tokenizer: {text}\n", (f"2: tokenizer{place}", words), folder=tmp_path)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (b"{% for %}", "is not a chat template: line 1: "),
        (b"{% nope %}", "is not a chat template: line 1: "),
        (b"x\n{{", "is not a chat template: line 2: "),
        (b"{{ %b1%b }}" % (b"(" * 3000, b")" * 3000), "it is nested too deeply"),
        (b"{{ %bx }}" % (b"-" * 250), "it is nested too deeply"),
        (b"\xff", "is not UTF-8"),
    ],
)
def test_a_template_that_cannot_be_compiled(tmp_path: Path, template: bytes, words: str) -> None:
    """It is found when the settings are loaded."""
    (tmp_path / "chat.jinja").write_bytes(template)
    refuses(
        f"{WORKER}tokenizer: {{chat_template: chat.jinja}}",
        ("2: tokenizer.chat_template", f'chat.jinja" {words}' if b"{{ " not in template else words),
        folder=tmp_path,
    )
