"""Files that settings name, and the settings file itself: what cannot be used is said at once."""

import os
import ssl
from pathlib import Path

import pytest

from router.processes.child import opened, seal
from router.settings.errors import SettingsError
from router.settings.files import load_chain, load_roots
from router.settings.loader import load
from tests.pems import write_pems
from tests.settings.wrong import WORKER, refuses, wrong


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with certificates, keys, and a pipe."""
    write_pems(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


def test_paths_start_at_the_settings_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the program was started, and in each of its processes."""
    (folder / "state").mkdir()
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    (folder / "some.yaml").write_text(
        f"tls: {{certificate: one.pem, key: {folder}/one.key, client_ca: both.pem}}\n"
        "workers: [{url: https://a, tls: {ca: two.pem, certificate: two.pem, key: two.key}}]\n"
        "shutdown: {state: ./state}\n"
    )
    settings = load(folder / "some.yaml")
    for known in (settings, opened(seal(settings))):
        assert known.tls
        paths = (known.tls.certificate, known.tls.key, known.tls.client_ca)
        assert paths == (folder / "one.pem", folder / "one.key", folder / "both.pem")
        assert known.workers[0].tls
        assert known.workers[0].tls.ca == folder / "two.pem"
        assert known.shutdown.state == str(folder / "state")


PEM = "certificate and key cannot be read as such: both must be PEM"


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("tls: {certificate: one.pem}", "tls.key", "required key is missing"),
        ("tls: one.pem", "tls", "must be a mapping"),
        ("tls: {certificate: one.pem, key: none}", "tls.key", 'none" does not exist'),
        ("tls: {certificate: one.pem, key: .}", "tls.key", "is not a plain file"),
        ("tls: {certificate: one.pem, key: pipe}", "tls.key", "is not a plain file"),
        ("tls: {certificate: 5, key: one.key}", "tls.certificate", "5 is not a path"),
        ("tls: {certificate: '', key: one.key}", "tls.certificate", '"" is not a path'),
        (
            "tls: {certificate: one.pem, key: '-----BEGIN PRIVATE KEY-----'}",
            "tls.key",
            "must be the path of a file, not what the file holds",
        ),
        ("tls: {certificate: one.pem, key: two.key}", "tls", "the key does not belong to the"),
        ("tls: {certificate: one.pem, key: locked.key}", "tls", "the key has a password"),
        ("tls: {certificate: one.pem, key: one.pem}", "tls", PEM),
        ("tls: {certificate: one.key, key: one.key}", "tls", PEM),
        (
            "tls: {certificate: one.pem, key: one.key, client_ca: one.key}",
            "tls.client_ca",
            "holds no certificate in PEM",
        ),
        ("shutdown: {state: missing}", "shutdown.state", 'missing" does not exist'),
        ("shutdown: {state: one.pem}", "shutdown.state", 'one.pem" does not exist'),
        (f"shutdown: {{state: {'x' * 300}}}", "shutdown.state", "File name too long"),
        ("shutdown: {state: 7}", "shutdown.state", "7 is not a path"),
    ],
)
def test_files_that_are_of_no_use_are_named(
    folder: Path, text: str, place: str, words: str
) -> None:
    """This happens at load time; OpenSSL never asks for a key's password on the terminal."""
    refuses(f"{WORKER}{text}", (f"2: {place}", words), folder=folder)


@pytest.mark.parametrize(
    ("worker", "place", "words"),
    [
        ("{url: http://a, tls: {ca: one.pem}}", "tls", "of no use with http://"),
        ("{url: https://a, tls: {certificate: one.pem}}", "tls", "key is missing"),
        ("{url: https://a, tls: {key: one.key}}", "tls", "certificate is missing"),
        (
            "{url: https://a, tls: {certificate: one.pem, key: two.key}}",
            "tls",
            "the key does not belong to the certificate",
        ),
        ("{url: https://a, tls: {ca: one.key}}", "tls.ca", "holds no certificate in PEM"),
    ],
)
def test_files_for_a_worker_are_checked_too(
    folder: Path, worker: str, place: str, words: str
) -> None:
    """The message names the worker by its position."""
    text = f"pools: [{{name: p, workers: [{worker}]}}]"
    refuses(text, (f"1: pools[0].workers[0].{place}", words), folder=folder)


def test_a_file_or_folder_without_permission(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the system's reason."""

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    (folder / "w.yaml").write_text(WORKER)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refuse)  # root may read everything
        text = f"{WORKER}tls: {{certificate: one.pem, key: one.key}}\n"
        text += f"auth: {{keys: ['file:{folder}/one.key']}}"
        reasons = [message.rpartition(": ")[2] for message in wrong(text, folder)]
        assert reasons == ["Permission denied"] * 3
        with pytest.raises(SettingsError, match=r"w.yaml: cannot be read: Permission denied$"):
            load(folder / "w.yaml")
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *_: False)
        refuses(
            f"{WORKER}shutdown: {{state: .}}",
            ("2: shutdown.state", "cannot be written in"),
            folder=folder,
        )


def test_a_file_that_is_gone_when_it_is_needed(folder: Path) -> None:
    """Certificates are read again while the router runs."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with pytest.raises(ValueError, match=r"^certificate and key cannot be read: No such file"):
        load_chain(context, folder / "gone.pem", folder / "one.key")
    with pytest.raises(ValueError, match=r"gone.pem\" cannot be read: No such file"):
        load_roots(context, folder / "gone.pem")


def test_a_settings_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    """Missing, a folder, too large, not UTF-8, empty, or not a path."""
    (tmp_path / "large").write_bytes(b"#" * ((1 << 20) + 1))
    (tmp_path / "latin").write_bytes(b"# a\n# \xe9\n")
    (tmp_path / "empty").write_text("# only\n")
    for name, message in [
        ("missing", ": no such file"),
        (".", ": is a directory; name the file in it"),
        ("large", ": is larger than 1MiB"),
        ("latin", ":2: is not UTF-8"),
        ("empty", ": is empty; it needs at least workers"),
        ("a\0b", ": cannot be read: embedded null byte"),
    ]:
        with pytest.raises(SettingsError) as caught:
            load(tmp_path / name)
        assert str(caught.value) == f"{tmp_path / name}{message}"


def test_a_byte_order_mark_is_no_mistake(tmp_path: Path) -> None:
    """Editors on Windows write one."""
    (tmp_path / "bom").write_bytes(b"\xef\xbb\xbf" + WORKER.encode())
    assert load(str(tmp_path / "bom")).workers[0].url == "http://a:1"
