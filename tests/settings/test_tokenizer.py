"""The `tokenizer` setting, as operators write it."""

from pathlib import Path

import pytest

from router.processes.child import opened, seal
from router.reload import changes
from router.settings.errors import SettingsError
from router.settings.loader import loads
from router.settings.model import Settings
from router.settings.schema import describe
from router.settings.tokenizer import TokenizerSettings

WORKER = "workers: [http://a:1]\n"
NOT_ONE = (
    "is not a tokenizer: write auto, bytes, worker, a folder such as ./llama,"
    " or a hub id such as org/name"
)
POOLS = """
tokenizer: org/top
pools:
  - {name: p, models: ["x"], workers: [http://a:1]}
  - {name: q, tokenizer: bytes, workers: [http://b:1]}
  - {name: r, models: ["z"], tokenizer: {keywords: {a: 1}}, workers: [http://c:1]}
"""


def model(folder: Path) -> Path:
    """Make a folder that looks like a tokenizer's."""
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text("{}")
    return folder


def read(text: str, folder: Path | None = None) -> TokenizerSettings:
    """Return what is read of a value."""
    return loads(f"{WORKER}tokenizer: {text}\n", folder=folder).tokenizer


def refused(text: str, folder: Path | None = None) -> str:
    """Return the message for a value that is refused."""
    with pytest.raises(SettingsError) as caught:
        loads(f"{WORKER}tokenizer: {text}\n", "f", folder)
    return str(caught.value)


@pytest.mark.parametrize("source", ["auto", "bytes", "worker", "org/name", "Org-1/na.me_2"])
def test_words_and_hub_ids(source: str) -> None:
    """These are kept as they are, alone or in a mapping."""
    assert read(source).source == source
    assert read(f"{{source: {source}}}").source == source


def test_folders(tmp_path: Path) -> None:
    """Folders are resolved from the settings file; a name that is no folder there is a hub id."""
    folder = model(tmp_path / "models" / "llama")
    for text in ("./models/llama", "models/llama", str(folder), f"{folder}/"):
        assert read(text, tmp_path).source == str(folder)
    assert read("models/other", tmp_path).source == "models/other"


def test_a_folder_stays_one_in_another_process(tmp_path: Path) -> None:
    """Settings read again elsewhere, in a child process, keep folders and hub ids as they were."""
    folder = model(tmp_path / "models" / "llama")
    text = f"{WORKER}tokenizer: {{source: models/llama, keywords: {{a: [1, true, x]}}}}\n"
    settings = loads(text, folder=tmp_path)
    again = opened(seal(settings))
    assert again.tokenizer == settings.tokenizer
    assert again.tokenizer.source == str(folder)
    assert opened(seal(loads(POOLS))).all_pools() == loads(POOLS).all_pools()


def test_all_of_it(tmp_path: Path) -> None:
    """Every key at once, with a template, which is read to check it."""
    (tmp_path / "chat.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    found = read(
        "{chat_template: chat.jinja, keywords: {thinking: false}, forward_token_ids: true}",
        tmp_path,
    )
    assert found.source == "auto"
    assert found.chat_template == tmp_path / "chat.jinja"
    assert found.keywords == {"thinking": False}
    assert found.forward_token_ids is True


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("byte", f'tokenizer: "byte" {NOT_ONE}; did you mean "bytes"?'),
        ("Auto", f'tokenizer: "Auto" {NOT_ONE}; did you mean "auto"?'),
        ("zebra", f'tokenizer: "zebra" {NOT_ONE}'),
        ("5", f"tokenizer: 5 {NOT_ONE}"),
        ("''", f'tokenizer: "" {NOT_ONE}'),
        ("[auto]", f"tokenizer: a list {NOT_ONE}"),
        ("a/b/c", f'tokenizer: "a/b/c" {NOT_ONE}'),
        ("a/b--c", f'tokenizer: "a/b--c" {NOT_ONE}'),
        ("a/../b", f'tokenizer: "a/../b" {NOT_ONE}'),
        ("https://hub/a/b", f'tokenizer: "https://hub/a/b" {NOT_ONE}'),
        ('"/a\\0b"', 'tokenizer: folder "/a\\u0000b" does not exist'),
        ("/nowhere", 'tokenizer: folder "/nowhere" does not exist'),
        ("{source: byte}", f'tokenizer.source: "byte" {NOT_ONE}; did you mean "bytes"?'),
        ("{sorce: auto}", 'tokenizer.sorce: unknown key; did you mean "source"?'),
        ("{keywords: 3}", "tokenizer.keywords: must be a mapping"),
        ("{forward_token_ids: 1}", "tokenizer.forward_token_ids: must be true or false"),
        (
            "{source: bytes, keywords: {a: 1}}",
            "tokenizer.keywords: is of no use with bytes: nothing is tokenized",
        ),
        (
            "{source: worker, keywords: {a: 1}}",
            "tokenizer.keywords: is of no use with worker: it is the worker that applies its"
            " template",
        ),
    ],
)
def test_mistakes(text: str, said: str) -> None:
    """The message has the line, the key and a suggestion."""
    assert refused(text) == f"f:2: {said}"


def test_mistakes_in_files(tmp_path: Path) -> None:
    """Unusable folders and templates are found when the settings are loaded."""
    (tmp_path / "empty").mkdir()
    assert refused("./empty", tmp_path).endswith(
        'empty" holds no tokenizer.json and no other tokenizer'
    )
    assert refused("{chat_template: none}", tmp_path).endswith("or is not a plain file")
    for text, said in (
        ("{% for %}", "line 1: "),
        ("{% nope %}", "line 1: "),
        ("x\n{{", "line 2: "),
    ):
        (tmp_path / "chat.jinja").write_text(text)
        assert f'chat.jinja" is not a chat template: {said}' in refused(
            "{chat_template: chat.jinja}", tmp_path
        )
    for deep in (f"{{{{ {'(' * 3000}1{')' * 3000} }}}}", "{{ " + "-" * 250 + "x }}"):
        (tmp_path / "chat.jinja").write_text(deep)
        said = refused("{chat_template: chat.jinja}", tmp_path)
        assert said.endswith("that can be compiled: it is nested too deeply")
    (tmp_path / "chat.jinja").write_bytes(b"\xff")
    assert refused("{chat_template: chat.jinja}", tmp_path).endswith('chat.jinja" is not UTF-8')


def test_pools_inherit_it() -> None:
    """A pool has the whole top-level tokenizer, unless it has one of its own."""
    settings = loads(POOLS)
    found = [pool.tokenizer for pool in settings.all_pools()]
    assert [one.source for one in found if one] == ["org/top", "bytes", "auto"]
    assert [one.keywords for one in found if one] == [{}, {}, {"a": 1}]
    rows = {row.path: (row.value, row.source) for row in describe(settings)}
    assert rows["pools[0].tokenizer.source"] == ("org/top", "default")
    assert rows["pools[1].tokenizer.source"] == ("bytes", "set")
    assert rows["pools[2].tokenizer.keywords"] == ('{"a": 1}', "set")
    (pool,) = Settings(workers=("http://a:1",), tokenizer="bytes").all_pools()
    assert pool.tokenizer == TokenizerSettings(source="bytes")


def test_the_log_tells_changes() -> None:
    """Changes are reported for each pool."""
    before, after = loads(f"{WORKER}tokenizer: bytes"), loads(f"{WORKER}tokenizer: org/name")
    assert changes(before, after) == ["pool default: tokenizer.source: bytes → org/name"]
    assert changes(loads(POOLS), loads(POOLS.replace("org/top", "org/new"))) == [
        "pool p: tokenizer.source: org/top → org/new"
    ]
