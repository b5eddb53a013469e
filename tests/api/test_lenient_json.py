"""A body that Python's `json` reads is made one that msgspec reads alike.

Numbers and flags are read as pydantic reads them for engines.
"""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from router.api.lenient_json import MAX_REWRITTEN_VALUES, rewrite, true, whole

#: Pieces of JSON, and of what is nearly that.
PIECES = [
    *("\\ud83d", "\\uDE00", "\\ue03d", "\\\\", '\\"', "\\n", "\\u", "\\", "ud83d", "d83d"),
    *("NaN", "Infinity", "-Infinity", "-", "1", "null", "a", "é", "😀", "\ud83d", "\udc00"),
    *('"', '"', '"', ":", ",", "[", "]", "{", "}", " "),
]
ENCODINGS = ["utf-8", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"]
ESCAPES = [*PIECES[:6], "ud83d", "NaN", "-Infinity", "é", "\udc00"]
#: What stands for an unpaired surrogate.
STAND_INS = {code: code + 0x800 for code in range(0xD800, 0xE000)}
TEXTS = st.lists(st.sampled_from(ESCAPES), max_size=6).map(lambda some: '"' + "".join(some) + '"')
CONSTANTS = st.sampled_from(["NaN", "Infinity", "-Infinity", "1", "null", "-0.5e3", "true"])


def lists(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """JSON lists and objects."""
    pairs = st.tuples(TEXTS, inner).map(": ".join)
    return st.lists(inner, max_size=4).map(lambda some: f"[{', '.join(some)}]") | st.lists(
        pairs, max_size=4
    ).map(lambda some: "{" + ",".join(some) + "}")


def plain(value: object) -> object:
    """The value with other characters for unpaired surrogates, and objects for constants."""
    if isinstance(value, str):
        return value.translate(STAND_INS)
    if isinstance(value, list):
        return list(map(plain, value))
    return value


def read(body: bytes) -> object:
    """What Python reads, in the form of `plain`; of keys that this makes equal the last counts."""
    return plain(
        json.loads(
            body,
            parse_constant=lambda _: {},
            object_pairs_hook=lambda pairs: {plain(key): plain(one) for key, one in pairs},
        )
    )


def check(text: str, encoding: str, *, marked: bool) -> None:
    """Compare what is made of a body with what Python reads in it."""
    body = text.encode(encoding, "surrogatepass")
    if marked and encoding == "utf-8":
        body = b"\xef\xbb\xbf" + body
    try:
        expected = read(body)
    except ValueError:
        with pytest.raises((msgspec.DecodeError, ValueError)):
            msgspec.json.decode(rewrite(body).seen)
        return
    made = rewrite(body)
    assert msgspec.json.decode(made.seen) == expected
    assert len(made.seen) == len(made.body)
    if encoding == "utf-8":
        assert made.body == body
    assert read(made.body) == expected


@given(st.recursive(TEXTS | CONSTANTS, lists), st.sampled_from(ENCODINGS), st.booleans())
def test_what_python_reads(text: str, encoding: str, marked: bool) -> None:
    """It has the same values, whatever its encoding, and the worker's copy keeps all of them."""
    check(text, encoding, marked=marked)


def test_a_character_that_stands_for_another() -> None:
    """If a body has it too, as a key beside the other, the last of the two counts."""
    check(r'{"\ud83d": [], "\ue03d": {}, "\ud83d": []}', "utf-8", marked=False)


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join), st.sampled_from(ENCODINGS))
def test_anything(text: str, encoding: str) -> None:
    """What is no JSON to Python is none to msgspec either."""
    check(text, encoding, marked=False)


@pytest.mark.parametrize("value", ["\\ud83d\\ude00", "\\ud83d", "\udc00", "\\\\ud83d", '",NaN,"'])
def test_where_a_long_body_is_cut(value: str) -> None:
    """What stands there is whole, and read once."""
    for shift in range(0, 20, 3):
        check(f'["{"x" * ((1 << 20) - shift)}{value * 2}"]', "utf-8", marked=False)


@pytest.mark.parametrize("value", ["NaN", '"\\ud83d"', '"\udc00"'])
def test_a_long_body(value: str) -> None:
    """Wherever in it such a value is; but not more of them than are worth the time."""
    for before in ("x" * (1 << 20), '\\\\\\"' * (1 << 18), "\\u00e9" * (1 << 18), "\\" * (1 << 21)):
        for shift in range(0, 9, 2):
            check(f'["{before}{"." * shift}", {value}]', "utf-8", marked=False)
    few = f"[{','.join([value] * MAX_REWRITTEN_VALUES)}]"
    assert (
        len(msgspec.json.decode(rewrite(few.encode("utf-8", "surrogatepass")).seen))
        == MAX_REWRITTEN_VALUES
    )
    with pytest.raises(ValueError, match="more than"):
        rewrite(f"[{value},{few[1:]}".encode("utf-8", "surrogatepass"))


INTEGER, FLAG = TypeAdapter[int](int), TypeAdapter[bool](bool)
NUMBERS = ["7", " 7 ", "+7", "-7", "7.0", "7.", "7.5", "7e1", "1_000", "1__0", "_1", "1_0.00"]
NUMBERS += ["0x7", "\u0667", "7\u00a0", "\x1f7", "", "0__1000", "+00_9", "0_", "0__9__9"]
ODD = [True, False, 7, 7.0, 7.5, float("nan"), float("inf"), 10**40, None, [7], {"a": 7}]
FLAGS = ["1", "0", "true", "TRUE", "t", "y", "Yes", "on", "off", "no", "f", " true", "2", "1.0", ""]


def validated(kind: TypeAdapter[Any], value: object) -> Any:
    """What pydantic makes of a value; None if it refuses it."""
    try:
        return kind.validate_python(value)
    except ValidationError:
        return None


@pytest.mark.parametrize("value", [*NUMBERS, *ODD])
def test_a_number(value: object) -> None:
    """The same number, or none."""
    assert whole(value) == validated(INTEGER, value)


@given(st.text("0123456789_+-. e\t\x1c\x85\u2003", max_size=8))
@example("+0_1.0 ")
def test_any_spelling_of_a_number(text: str) -> None:
    """As pydantic reads it, however it is spelled.

    (But that it takes `0-5` for -5: numbers below zero are no router's business.)
    """
    assume("-" not in text.strip()[1:])
    assert whole(text) == validated(INTEGER, text)


@pytest.mark.parametrize("value", [*FLAGS, True, False, 0, 1, 2, 0.0, 1.0, 1.5, None, [], {}])
def test_a_flag(value: object) -> None:
    """True where pydantic reads `true`, and not where it reads `false` or nothing."""
    assert true(value) is (validated(FLAG, value) is True)
