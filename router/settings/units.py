"""Types for settings values with a unit: durations, sizes and shares.

Each is parsed strictly, so that a forgotten unit is an error and not a surprise.
"""

import re
from operator import itemgetter
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from router.runtime.quoting import shown

_MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_BYTES = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
}
DURATION_PATTERN = f"^[0-9]{{1,9}}({'|'.join(_MILLISECONDS)})$"
DURATION_OR_OFF_PATTERN = f"{DURATION_PATTERN}|^off$"
SIZE_PATTERN = f"^[0-9]{{1,9}}({'|'.join(_BYTES)})$"
_PERCENT = r"(100|[0-9]{1,2}(?:\.[0-9]{1,3})?)%"


def parse_duration(value: object) -> float:
    """`30s` → 30.0 seconds."""
    return _quantity(value, _MILLISECONDS, "duration", "30s") / 1000


def parse_duration_or_off(value: object) -> float | None:
    """`30s` → 30.0 seconds, `off` → None."""
    if value is None or value == "off":
        return None
    try:
        seconds = parse_duration(value)
    except ValueError as error:
        raise ValueError(f"{error}, or off") from None
    if seconds <= 0:
        raise ValueError("must be longer than 0s, or off")
    return seconds


def parse_share(value: object) -> float:
    """`0.2` or `20%` → 0.2."""
    share = -1.0
    if isinstance(value, int | float) and not isinstance(value, bool):
        share = value
    elif isinstance(value, str) and (found := re.fullmatch(_PERCENT, value, re.ASCII)):
        share = float(found[1]) / 100
    if not 0 <= share <= 1:  # -1.0 if it is not a number at all
        raise ValueError(
            f"{shown(value)} is not a share: write a number from 0 to 1, such as 0.2, or 20%"
        )
    return float(share)


def parse_size(value: object) -> int:
    """`16MiB` → 16777216 bytes."""
    return _quantity(value, _BYTES, "size", "16MiB")


def format_duration(seconds: float) -> str:
    """30.0 → `30s`; the inverse of `parse_duration`."""
    milliseconds = round(seconds * 1000)
    if milliseconds / 1000 != seconds:
        return f"{seconds:g}s"  # a strategy's default, finer than a setting can express
    return _shortest(milliseconds, _MILLISECONDS)


def format_duration_or_off(seconds: float | None) -> str:
    """None → `off`; the inverse of `parse_duration_or_off`."""
    return "off" if seconds is None else format_duration(seconds)


def format_share(share: float) -> int | float:
    """Return 1.0 as 1, and 0.2 as it is."""
    return int(share) if share.is_integer() else share


def format_size(size: int) -> str:
    """16777216 → `16MiB`; the inverse of `parse_size`."""
    return _shortest(size, _BYTES)


def _quantity(value: object, units: dict[str, int], what: str, example: str) -> int:
    found = re.fullmatch(r"([0-9]{1,9})([A-Za-z]+)", value) if isinstance(value, str) else None
    if found is None or found[2] not in units:
        raise ValueError(
            f"{shown(value)} is not a {what}: write a whole number and a unit"
            f" ({', '.join(units)}), such as {example}"
        )
    return int(found[1]) * units[found[2]]


def _shortest(amount: int, units: dict[str, int]) -> str:
    """Return the exact notation with the smallest number."""
    exact = [(amount // factor, unit) for unit, factor in units.items() if amount % factor == 0]
    number, unit = min(exact, key=itemgetter(0))
    return f"{number}{unit}"


Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": DURATION_PATTERN}),
]
"""Seconds, written with a unit."""

DurationOrOff = Annotated[
    float | None,
    BeforeValidator(parse_duration_or_off),
    PlainSerializer(format_duration_or_off, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": DURATION_OR_OFF_PATTERN}),
]
"""Seconds, written with a unit; None is written `off`."""

Share = Annotated[
    float,
    BeforeValidator(parse_share),
    PlainSerializer(format_share, when_used="json"),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "minimum": 0, "maximum": 1},
                {"type": "string", "pattern": rf"^{_PERCENT}$"},
            ]
        }
    ),
]
"""A part of a whole, 0 to 1, written as `0.2` or `20%`."""

Size = Annotated[
    int,
    BeforeValidator(parse_size),
    PlainSerializer(format_size, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": SIZE_PATTERN}),
]
"""Bytes, written with a unit."""
