"""Secrets in settings: where they come from, and that they never show."""

import os
from pathlib import Path

import pytest
from pydantic import SecretStr, TypeAdapter, ValidationError

from router.runtime.quote import shown_file
from router.settings.types import Secret, resolve_secret

TWO_FORMS = (
    "a secret is never written here: give ${NAME} for an environment variable,"
    " or file:/path for a file that holds it"
)


def test_a_secret_comes_from_the_environment_or_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Both forms work; white space around the contents of a file is removed."""
    monkeypatch.setenv("SOME_KEY", "sk-env")
    (tmp_path / "key").write_text("  sk-file\n")
    adapter: TypeAdapter[SecretStr] = TypeAdapter(Secret)
    assert adapter.validate_python("${SOME_KEY}").get_secret_value() == "sk-env"
    secret = adapter.validate_python(f"file:{tmp_path}/key")
    assert secret.get_secret_value() == "sk-file"
    assert adapter.validate_python(secret) == secret


def test_a_secret_never_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not in repr, str or the printed settings."""
    monkeypatch.setenv("SOME_KEY", "sk-env")
    adapter: TypeAdapter[SecretStr] = TypeAdapter(Secret)
    secret = adapter.validate_python("${SOME_KEY}")
    assert "sk-env" not in f"{secret} {secret!r}"
    assert adapter.dump_python(secret, mode="json") == "***"


@pytest.mark.parametrize(
    "value", ["sk-literal", "$KEY", "${KEY", "${1A}", "${A}${B}", 5, None, ["x"]]
)
def test_a_literal_secret_is_refused(value: object) -> None:
    """The message names the two forms, and never shows the secret."""
    with pytest.raises(ValueError, match="secret") as caught:
        resolve_secret(value)
    assert str(caught.value) == TWO_FORMS


def test_the_file_of_a_secret_has_an_absolute_path() -> None:
    """The file may be read again at any time, from any working directory."""
    with pytest.raises(ValueError, match="must be absolute: file:/path"):
        resolve_secret("file:relative")


def test_an_unset_or_useless_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset, empty, or with characters that cannot be sent in a header."""
    monkeypatch.delenv("NO_KEY", raising=False)
    monkeypatch.setenv("EMPTY_KEY", "")
    monkeypatch.setenv("ODD_KEY", "sk-a\nb")
    for name, said in [
        ("NO_KEY", "is not set"),
        ("EMPTY_KEY", "is empty"),
        ("ODD_KEY", "holds characters other than printable ASCII"),
    ]:
        with pytest.raises(ValueError, match=f"^environment variable {name} {said}$"):
            resolve_secret(f"${{{name}}}")


def test_a_file_without_a_secret_is_named(tmp_path: Path) -> None:
    """Missing, a folder, a pipe that would block, empty, or binary."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").write_text(" \n")
    (tmp_path / "binary").write_bytes(b"\xff\x00")
    for path, said in [
        (f"{tmp_path}/none", "does not exist or is not a plain file"),
        (f"{tmp_path}", "does not exist or is not a plain file"),
        (f"{tmp_path}/pipe", "does not exist or is not a plain file"),
        ("/a\0b", "does not exist or is not a plain file"),
        (f"{tmp_path}/empty", "is empty"),
        (f"{tmp_path}/binary", "holds characters other than printable ASCII"),
    ]:
        with pytest.raises(ValueError, match="file") as caught:
            resolve_secret(f"file:{path}")
        assert str(caught.value) == f"{shown_file(path)} {said}"


def test_a_file_is_named_by_its_whole_path() -> None:
    """The path is shown whole, on one line; only an absurdly long one is cut."""
    long = "/" + "a" * 300
    assert shown_file(long) == f'file "{long}"'
    assert shown_file("/a\nb") == 'file "/a\\nb"'
    assert len(shown_file("/" + "a" * 5000)) < 500


def test_an_unreadable_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the system's reason."""

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "key").write_text("sk-file")
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ValueError, match=r"cannot be read: Permission denied$"):
        resolve_secret(f"file:{tmp_path}/key")


def test_pydantic_does_not_tell_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only our own message says what is wrong with it."""
    monkeypatch.setenv("ODD_KEY", "sk-ö")
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(Secret).validate_python("${ODD_KEY}")
    assert "sk-ö" not in str(caught.value)
