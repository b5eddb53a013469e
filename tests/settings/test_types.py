"""Types of fields: addresses, durations, shares, sizes and secrets."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr, TypeAdapter, ValidationError

from router.runtime.quote import shown_file
from router.settings.model import WorkerSettings
from router.settings.types import (
    Address,
    Duration,
    DurationOrOff,
    Secret,
    Share,
    Size,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
    resolve_secret,
)


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
    assert (address.host, address.port, str(address)) == (host, port, text)
    assert Address.parse(address) is address


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        *((host, True) for host in ("127.0.0.1", "127.8.9.10", "::1", "0:0:0:0:0:0:0:1")),
        *((host, True) for host in ("::ffff:127.0.0.1", "LocalHost")),
        *((host, False) for host in ("0.0.0.0", "::", "10.0.0.1", "::ffff:10.0.0.1")),  # noqa: S104
        *((host, False) for host in ("fe80::1", "localhost.example", "gpu-2")),
    ],
)
def test_a_loopback_address_is_known(host: str, loopback: bool) -> None:
    """In every notation; a name other than localhost may resolve to anything."""
    assert Address(host, 80).is_loopback == loopback


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://a:1", Address("a", 1)),
        ("http://a", Address("a", 80)),
        ("https://a/", Address("a", 443)),
        ("http://[::1]:8000", Address("::1", 8000)),
        ("https://[::1]", Address("::1", 443)),
    ],
)
def test_a_worker_has_the_address_in_its_url(url: str, address: Address) -> None:
    """Without a port, the default one of the scheme is taken; the name is the address."""
    worker = WorkerSettings(url=url)
    assert (worker.address, worker.name) == (address, str(address))


@pytest.mark.parametrize(
    ("kind", "text", "value", "written"),
    [
        (Duration, "30s", 30.0, "30s"),
        (Duration, "250ms", 0.25, "250ms"),
        (Duration, "90s", 90.0, "90s"),
        (Duration, "600s", 600.0, "10m"),
        (Duration, "2h", 7200.0, "2h"),
        (Duration, "1d", 86400.0, "1d"),
        (Duration, "0s", 0.0, "0ms"),
        (DurationOrOff, "off", None, "off"),
        (DurationOrOff, "15s", 15.0, "15s"),
        (Share, 0, 0.0, 0),
        (Share, 1, 1.0, 1),
        (Share, 0.25, 0.25, 0.25),
        (Share, "100%", 1.0, 1),
        (Share, "12.5%", 0.125, 0.125),
        (Size, "16MiB", 16 << 20, "16MiB"),
        (Size, "2TiB", 2 << 40, "2TiB"),
        (Size, "64kB", 64_000, "64kB"),
        (Size, "10MB", 10_000_000, "10MB"),
        (Size, "1024B", 1024, "1KiB"),
    ],
)
def test_a_quantity_is_read_in_one_unit_and_written_with_the_largest_that_fits(
    kind: Any, text: object, value: object, written: object
) -> None:
    """Seconds, bytes, and a part of one."""
    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    assert adapter.validate_python(text) == value
    assert adapter.dump_python(value, mode="json") == written


ADDRESS = 'is not an address: write host:port, such as 127.0.0.1:8080 or "[::1]:8080"'
DURATION = "is not a duration: write a whole number and a unit (ms, s, m, h, d), such as 30s"
SHARE = "is not a share: write a number from 0 to 1, such as 0.2, or 20%"
SIZE = (
    "is not a size: write a whole number and a unit"
    " (B, kB, MB, GB, KiB, MiB, GiB, TiB), such as 16MiB"
)
REFUSED: list[tuple[Any, str, list[object]]] = [
    (Address, ADDRESS, [8080, None, ":8080", "127.0.0.1", "127.0.0.1:", "127.0.0.1:80a"]),
    (Address, ADDRESS, ["127.0.0.1:-1", "::1:8080", "[::g]:80", "[fe80::1%eth0]:80", "a b:80"]),
    (Address, ADDRESS, ["999.0.0.1:80", "http://a:80", "a:80\n"]),
    (Address, "is not an address: a port is at most 65535", ["a:65536"]),
    (Duration, DURATION, [5, None, "30", "30 s", "-1s", "1.5s", "30S", "3\u0660s", "1m30s"]),
    (DurationOrOff, f"{DURATION}, or off", ["Off", 15]),
    (DurationOrOff, "must be longer than 0s, or off", ["0s"]),
    (Share, SHARE, [20, float("nan"), True, "0.5", "101%", "-5%", "\u0665%"]),
    (Size, SIZE, [1024, "16mib", "16M", "1.5GiB"]),
]


@pytest.mark.parametrize(
    ("kind", "sentence", "value"),
    [(kind, sentence, value) for kind, sentence, values in REFUSED for value in values],
)
def test_anything_else_is_refused_with_what_is_allowed(
    kind: Any, sentence: str, value: object
) -> None:
    """A bare number is neither a duration nor a size."""
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(kind).validate_python(value)
    (error,) = caught.value.errors()
    assert error["msg"].endswith(sentence)


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


def test_a_duration_finer_than_a_setting_is_printed_all_the_same() -> None:
    """The default of another package's strategy may be one."""
    assert format_duration(0.0001) == "0.0001s"


def test_a_secret_comes_from_the_environment_or_a_file_and_never_shows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """White space around the contents of a file is removed."""
    monkeypatch.setenv("SOME_KEY", "sk-env")
    (tmp_path / "key").write_text("  sk-file\n")
    adapter: TypeAdapter[SecretStr] = TypeAdapter(Secret)
    for text, value in (("${SOME_KEY}", "sk-env"), (f"file:{tmp_path}/key", "sk-file")):
        secret = adapter.validate_python(text)
        assert secret.get_secret_value() == value
        assert adapter.validate_python(secret) == secret
        assert value not in f"{secret} {secret!r}"
        assert adapter.dump_python(secret, mode="json") == "***"


@pytest.mark.parametrize(
    "value", ["sk-literal", "$KEY", "${KEY", "${1A}", "${A}${B}", 5, None, ["x"]]
)
def test_a_literal_secret_is_refused(value: object) -> None:
    """The message names the two forms, and never shows the secret."""
    with pytest.raises(ValueError, match=r"\$\{NAME\}.*file:/path") as caught:
        resolve_secret(value)
    assert "literal" not in str(caught.value)


def test_a_secret_that_cannot_be_sent_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable is named, and what it holds is not, not even by pydantic."""
    for name, value in {"EMPTY_KEY": "", "ODD_KEY": "sk-ö", "LINES_KEY": "sk\nx"}.items():
        monkeypatch.setenv(name, value)
    for name, words in [
        ("NO_KEY", "is not set"),
        ("EMPTY_KEY", "is empty"),
        ("ODD_KEY", "characters other than printable ASCII"),
        ("LINES_KEY", "characters other than printable ASCII"),
    ]:
        with pytest.raises(ValidationError, match=f"environment variable {name} .*{words}") as told:
            TypeAdapter(Secret).validate_python(f"${{{name}}}")
        assert "sk" not in str(told.value)


def test_the_file_of_a_secret_is_named_by_its_whole_path(tmp_path: Path) -> None:
    """Missing, a folder, a pipe that would block, empty, binary, or a relative path."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").write_text(" \n")
    (tmp_path / "binary").write_bytes(b"\xff\x00")
    for path, words in [
        (f"{tmp_path}/none", "does not exist or is not a plain file"),
        (f"{tmp_path}", "does not exist or is not a plain file"),
        (f"{tmp_path}/pipe", "does not exist or is not a plain file"),
        ("/a\0b", "does not exist or is not a plain file"),
        (f"{tmp_path}/empty", "is empty"),
        (f"{tmp_path}/binary", "holds characters other than printable ASCII"),
    ]:
        with pytest.raises(ValueError, match="file") as caught:
            resolve_secret(f"file:{path}")
        assert str(caught.value) == f"{shown_file(path)} {words}"
    with pytest.raises(ValueError, match="must be absolute"):
        resolve_secret("file:relative")
    assert shown_file("/a\nb") == 'file "/a\\nb"'
    assert len(shown_file("/" + "a" * 5000)) < 500
