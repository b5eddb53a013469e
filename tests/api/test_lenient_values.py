"""Numbers and flags are read as pydantic reads them for engines."""

from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from router.api.lenient_json import true, whole

INTEGER, FLAG = TypeAdapter[int](int), TypeAdapter[bool](bool)
NUMBERS = [
    "7",
    " 7 ",
    "+7",
    "-7",
    "7.0",
    "7.",
    "7.5",
    "7e1",
    "1_000",
    "1__0",
    "_1",
    "1_0.00",
    "0x7",
]
ODD = [
    True,
    False,
    7,
    7.0,
    7.5,
    float("nan"),
    float("inf"),
    10**40,
    "",
    "\u0667",
    "7\u00a0",
    "\x1f7",
    None,
]
FLAGS = ["1", "0", "true", "TRUE", "t", "y", "Yes", "on", "off", "no", "f", " true", "2", "1.0", ""]


def read(kind: TypeAdapter[Any], value: object) -> Any:
    """What pydantic makes of a value; None if it refuses it."""
    try:
        return kind.validate_python(value)
    except ValidationError:
        return None


@pytest.mark.parametrize("value", [*NUMBERS, *ODD, [7], {"a": 7}])
def test_a_number(value: object) -> None:
    """The same number, or none."""
    assert whole(value) == read(INTEGER, value)


@given(st.text("0123456789_+-. e\t\x1c\x85\u2003", max_size=8))
@example("+0_1.0 ")
def test_any_spelling_of_a_number(text: str) -> None:
    """As pydantic reads it, however it is spelled.

    (But that it takes `0-5` for -5: numbers below zero are no router's business.)
    """
    assume("-" not in text.strip()[1:])
    assert whole(text) == read(INTEGER, text)


@pytest.mark.parametrize("value", [*FLAGS, True, False, 0, 1, 2, 0.0, 1.0, 1.5, None, [], {}])
def test_a_flag(value: object) -> None:
    """True where pydantic reads `true`, and not where it reads `false` or nothing."""
    assert true(value) is (read(FLAG, value) is True)
