"""Certificates and keys in the settings: files that cannot be used are refused at load time."""

import os
import ssl
from pathlib import Path

import pytest

from router.settings.errors import SettingsError
from router.settings.files import load_chain, load_roots
from router.settings.loader import load, loads
from tests.pems import write_pems

PEM = "certificate and key cannot be read as such: both must be PEM"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with certificates and keys."""
    write_pems(tmp_path)
    return tmp_path


def wrong(text: str, folder: Path) -> list[str]:
    """Return the messages for a text, one a line, and check that they show no file contents."""
    with pytest.raises(SettingsError) as caught:
        loads(text, "f", folder)
    lines = str(caught.value).replace(str(folder), "DIR").split("\n")
    assert not any("BEGIN" in line for line in lines)
    return lines


def test_files_are_found_beside_the_settings(folder: Path) -> None:
    """Relative paths start at the settings file, wherever the program was started."""
    (folder / "some.yaml").write_text(
        f"tls: {{certificate: one.pem, key: {folder}/one.key, client_ca: both.pem}}\n"
        "workers: [{url: https://a, tls: {ca: two.pem, certificate: two.pem, key: two.key}}]\n"
    )
    settings = load(folder / "some.yaml")
    assert settings.tls
    assert settings.tls.certificate == folder / "one.pem"
    assert settings.tls.key == folder / "one.key"
    assert settings.tls.client_ca == folder / "both.pem"
    tls = settings.workers[0].tls
    assert tls
    assert (tls.ca, tls.certificate, tls.key) == tuple(
        folder / name for name in ("two.pem", "two.pem", "two.key")
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tls: {certificate: one.pem}", "2: tls.key: required key is missing"),
        ("tls: {}", "2: tls.certificate: required key is missing"),
        ("tls: one.pem", "2: tls: must be a mapping"),
        ("tls: {certificate: one.pem, key: none}", '2: tls.key: file "DIR/none" does not exist'),
        ("tls: {certificate: one.pem, key: .}", '2: tls.key: file "DIR" does not exist or is not'),
        ("tls: {certificate: one.pem, key: pipe}", '2: tls.key: file "DIR/pipe" does not exist'),
        ("tls: {certificate: 5, key: one.key}", "2: tls.certificate: 5 is not a path"),
        ("tls: {certificate: '', key: one.key}", '2: tls.certificate: "" is not a path'),
        (
            "tls: {certificate: one.pem, key: '-----BEGIN PRIVATE KEY-----'}",
            "2: tls.key: must be the path of a file, not what the file holds",
        ),
        (
            "tls: {certificate: one.pem, key: two.key}",
            "2: tls: the key does not belong to the certificate",
        ),
        (
            "tls: {certificate: one.pem, key: locked.key}",
            "2: tls: the key has a password: give one without",
        ),
        ("tls: {certificate: one.pem, key: one.pem}", f"2: tls: {PEM}"),
        ("tls: {certificate: one.key, key: one.key}", f"2: tls: {PEM}"),
        (
            "tls: {certificate: one.pem, key: one.key, client_ca: one.key}",
            '2: tls.client_ca: file "DIR/one.key" holds no certificate in PEM',
        ),
    ],
)
def test_files_that_are_of_no_use_are_named(folder: Path, text: str, said: str) -> None:
    """This happens at load time; OpenSSL never asks for a key's password on the terminal."""
    os.mkfifo(folder / "pipe")
    assert wrong(f"workers: [http://a]\n{text}", folder)[0].startswith(f"f:{said}")


@pytest.mark.parametrize(
    ("worker", "said"),
    [
        (
            "{url: http://a, tls: {ca: one.pem}}",
            "tls: is of no use with http://: write https:// in the URL, or remove it",
        ),
        (
            "{url: https://a, tls: {certificate: one.pem}}",
            "tls: a certificate and its key are given together: key is missing",
        ),
        (
            "{url: https://a, tls: {key: one.key}}",
            "tls: a certificate and its key are given together: certificate is missing",
        ),
        (
            "{url: https://a, tls: {certificate: one.pem, key: two.key}}",
            "tls: the key does not belong to the certificate",
        ),
        (
            "{url: https://a, tls: {ca: one.key}}",
            'tls.ca: file "DIR/one.key" holds no certificate in PEM',
        ),
        ("{url: https://a, tls: {cert: x}}", "tls.cert: unknown key"),
    ],
)
def test_a_worker_is_told_from_others_by_its_certificate(
    folder: Path, worker: str, said: str
) -> None:
    """The message names the worker by its position and says what is wrong with its TLS files."""
    (line,) = wrong(f"pools: [{{name: p, workers: [{worker}]}}]", folder)
    assert line.startswith(f"f:1: pools[0].workers[0].{said}")


def test_an_unreadable_file_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the system's reason, also if the file vanishes later."""

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refuse)
        text = "workers: [http://a]\ntls: {certificate: one.pem, key: one.key}"
        assert wrong(text, folder) == [
            f'f:2: tls.{name}: file "DIR/one.{end}" cannot be read: Permission denied'
            for name, end in (("certificate", "pem"), ("key", "key"))
        ]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with pytest.raises(ValueError, match=r"^certificate and key cannot be read: No such file"):
        load_chain(context, folder / "gone.pem", folder / "one.key")
    with pytest.raises(ValueError, match=r"gone.pem\" cannot be read: No such file"):
        load_roots(context, folder / "gone.pem")
