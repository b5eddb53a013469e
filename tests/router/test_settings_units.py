"""Durations, shares, sizes, addresses and secrets: what is read, refused and printed."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr, TypeAdapter, ValidationError

from router.address import Address
from router.quoting import shown_file
from router.secret import Secret, resolve_secret
from router.units import (
    Duration,
    DurationOrOff,
    Share,
    Size,
    format_duration,
    format_size,
    parse_duration,
    parse_duration_or_off,
    parse_share,
    parse_size,
)

DURATION = "is not a duration: write a whole number and a unit (ms, s, m, h, d), such as 30s"
SIZE = (
    "is not a size: write a whole number and a unit"
    " (B, kB, MB, GB, KiB, MiB, GiB, TiB), such as 16MiB"
)
ADDRESS = 'is not an address: write host:port, such as 127.0.0.1:8080 or "[::1]:8080"'
TWO_FORMS = (
    "a secret is never written here: give ${NAME} for an environment variable,"
    " or file:/path for a file that holds it"
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30.0), ("250ms", 0.25), ("10m", 600.0), ("2h", 7200.0), ("1d", 86400.0), ("0s", 0.0)],
)
def test_a_duration_is_read_in_seconds(text: str, seconds: float) -> None:
    """Every unit is converted to seconds."""
    assert TypeAdapter(Duration).validate_python(text) == seconds


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (5, "5"),
        (1.5, "1.5"),
        (True, "true"),
        (None, "nothing"),
        ([], "a list"),
        ({}, "a mapping"),
        ("30", '"30"'),
        ("30 s", '"30 s"'),
        ("-1s", '"-1s"'),
        ("1.5s", '"1.5s"'),
        ("1e3s", '"1e3s"'),
        ("30S", '"30S"'),
        ("30s\n", '"30s\\n"'),
        ("3\u0660s", '"3\u0660s"'),
        ("1234567890s", '"1234567890s"'),
        ("s", '"s"'),
        ("1m30s", '"1m30s"'),
        ("", '""'),
    ],
)
def test_anything_else_is_no_duration(value: object, said: str) -> None:
    """Bare numbers are refused too; the message shows what is allowed."""
    with pytest.raises(ValueError, match="duration") as caught:
        parse_duration(value)
    assert str(caught.value) == f"{said} {DURATION}"


@pytest.mark.parametrize(("text", "seconds"), [("off", None), ("15s", 15.0), ("1ms", 0.001)])
def test_a_duration_may_be_off(text: str, seconds: float | None) -> None:
    """`off` is None, and is printed as `off` again."""
    adapter: TypeAdapter[float | None] = TypeAdapter(DurationOrOff)
    assert adapter.validate_python(text) == seconds
    assert adapter.dump_python(seconds, mode="json") == text


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("Off", f'"Off" {DURATION}, or off'),
        (False, f"false {DURATION}, or off"),
        (15, f"15 {DURATION}, or off"),
        ("none", f'"none" {DURATION}, or off'),
        ("0s", "must be longer than 0s, or off"),
    ],
)
def test_anything_else_is_neither(value: object, said: str) -> None:
    """The message names both forms; only lower-case `off` is accepted."""
    with pytest.raises(ValueError, match="off") as caught:
        parse_duration_or_off(value)
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("value", "share"),
    [(0, 0.0), (1, 1.0), (0.25, 0.25), ("0%", 0.0), ("100%", 1.0), ("20%", 0.2), ("12.5%", 0.125)],
)
def test_a_share_is_a_number_or_a_percentage(value: object, share: float) -> None:
    """It is printed as a number, without a decimal point if it is 0 or 1."""
    adapter: TypeAdapter[float] = TypeAdapter(Share)
    assert adapter.validate_python(value) == share
    written = adapter.dump_python(share, mode="json")
    assert (written, type(written)) == (share, int if share in (0, 1) else float)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (20, "20"),
        (1.5, "1.5"),
        (-0.1, "-0.10000000000000001"),
        (float("nan"), "nan"),
        (float("inf"), "inf"),
        (True, "true"),
        (None, "nothing"),
        ([], "a list"),
        ("0.5", '"0.5"'),
        ("101%", '"101%"'),
        ("100.5%", '"100.5%"'),
        ("-5%", '"-5%"'),
        ("5 %", '"5 %"'),
        ("\u0665%", '"\u0665%"'),
        ("5%\n", '"5%\\n"'),
    ],
)
def test_anything_else_is_no_share(value: object, said: str) -> None:
    """The message shows both forms."""
    with pytest.raises(ValueError, match="share") as caught:
        parse_share(value)
    assert str(caught.value) == (
        f"{said} is not a share: write a number from 0 to 1, such as 0.2, or 20%"
    )


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("16MiB", 16 << 20),
        ("512KiB", 512 << 10),
        ("1GiB", 1 << 30),
        ("2TiB", 2 << 40),
        ("64kB", 64_000),
        ("10MB", 10_000_000),
        ("3GB", 3_000_000_000),
        ("7B", 7),
    ],
)
def test_a_size_is_read_in_bytes(text: str, size: int) -> None:
    """Decimal and binary units are told apart."""
    assert TypeAdapter(Size).validate_python(text) == size


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (1024, "1024"),
        (1e3, "1000"),
        ("16mib", '"16mib"'),
        ("16M", '"16M"'),
        ("64KB", '"64KB"'),
        ("1.5GiB", '"1.5GiB"'),
        ("-1B", '"-1B"'),
        (False, "false"),
    ],
)
def test_anything_else_is_no_size(value: object, said: str) -> None:
    """Bare numbers are refused here too."""
    with pytest.raises(ValueError, match="size") as caught:
        parse_size(value)
    assert str(caught.value) == f"{said} {SIZE}"


@given(st.integers(0, 999_999_999), st.sampled_from(["ms", "s", "m", "h", "d"]))
def test_durations_round_trip(number: int, unit: str) -> None:
    """A duration is printed so that it reads the same."""
    seconds = parse_duration(f"{number}{unit}")
    assert parse_duration(format_duration(seconds)) == seconds


@given(
    st.integers(0, 999_999_999),
    st.sampled_from(["B", "kB", "MB", "GB", "KiB", "MiB", "GiB", "TiB"]),
)
def test_sizes_round_trip(number: int, unit: str) -> None:
    """A size is printed so that it reads the same."""
    size = parse_size(f"{number}{unit}")
    assert parse_size(format_size(size)) == size


def test_values_are_written_with_the_largest_unit_that_fits() -> None:
    """Values are printed as a person would write them."""
    assert [format_duration(s) for s in (0, 0.25, 2, 90, 600, 86400)] == [
        "0ms",
        "250ms",
        "2s",
        "90s",
        "10m",
        "1d",
    ]
    assert [format_size(b) for b in (0, 7, 1000, 1024, 16 << 20)] == [
        "0B",
        "7B",
        "1kB",
        "1KiB",
        "16MiB",
    ]
    assert format_duration(0.0001) == "0.0001s"


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:8080", "127.0.0.1", 8080),
        ("[::1]:8080", "::1", 8080),
        ("router.example:0", "router.example", 0),
        ("gpu_2:65535", "gpu_2", 65535),
    ],
)
def test_an_address_is_read_and_prints_back(text: str, host: str, port: int) -> None:
    """IPv6 addresses have brackets in the text, and none in `host`."""
    address = TypeAdapter(Address).validate_python(text)
    assert (address.host, address.port) == (host, port)
    assert str(address) == text
    assert Address.parse(address) is address


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (8080, "8080"),
        (":8080", '":8080"'),
        ("127.0.0.1", '"127.0.0.1"'),
        ("127.0.0.1:", '"127.0.0.1:"'),
        ("127.0.0.1:80a", '"127.0.0.1:80a"'),
        ("127.0.0.1:-1", '"127.0.0.1:-1"'),
        ("::1:8080", '"::1:8080"'),
        ("[::g]:8080", '"[::g]:8080"'),
        ("[fe80::1%eth0]:80", '"[fe80::1%eth0]:80"'),
        ("999.0.0.1:80", '"999.0.0.1:80"'),
        ("a b:80", '"a b:80"'),
        ("http://a:80", '"http://a:80"'),
        ("a:80\n", '"a:80\\n"'),
        (None, "nothing"),
    ],
)
def test_anything_else_is_no_address(value: object, said: str) -> None:
    """The message shows both forms."""
    with pytest.raises(ValueError, match="address") as caught:
        Address.parse(value)
    assert str(caught.value) == f"{said} {ADDRESS}"


def test_a_port_has_a_largest_number() -> None:
    """A port fits 16 bits."""
    with pytest.raises(ValueError, match=r'^"a:65536" is not an address: a port is at most 65535$'):
        Address.parse("a:65536")


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.8.9.10", "::1", "0:0:0:0:0:0:0:1", "::ffff:127.0.0.1", "LocalHost"]
)
def test_a_loopback_address_is_known(host: str) -> None:
    """Loopback addresses are recognised in every notation."""
    assert Address(host, 80).is_loopback


@pytest.mark.parametrize(
    "host",
    ["0.0.0.0", "::", "10.0.0.1", "::ffff:10.0.0.1", "fe80::1", "localhost.example", "gpu-2"],  # noqa: S104
)
def test_any_other_address_may_be_reached_by_others(host: str) -> None:
    """Names other than localhost count as reachable too, since they may resolve to anything."""
    assert not Address(host, 80).is_loopback


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
