"""Durations, shares and sizes: what is read, refused and printed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from router.settings.types import (
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
        (None, "nothing"),
        ("30", '"30"'),
        ("30 s", '"30 s"'),
        ("-1s", '"-1s"'),
        ("1.5s", '"1.5s"'),
        ("30S", '"30S"'),
        ("3\u0660s", '"3\u0660s"'),
        ("1m30s", '"1m30s"'),
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
        (15, f"15 {DURATION}, or off"),
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
        (float("nan"), "nan"),
        (True, "true"),
        ("0.5", '"0.5"'),
        ("101%", '"101%"'),
        ("-5%", '"-5%"'),
        ("\u0665%", '"\u0665%"'),
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
        ("16mib", '"16mib"'),
        ("16M", '"16M"'),
        ("1.5GiB", '"1.5GiB"'),
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
