"""Whether a worker makes the same tokens as we do, and if not, where it begins."""

from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from router.identity.exact import Exact
from router.identity.folder import TOKENIZER
from router.identity.probes import IMAGE, PROBES
from router.identity.unlike import Unlike

if TYPE_CHECKING:
    from tokenizers import Tokenizer

#: Tokens shown before the first that differs.
_BEFORE = 8


class State(StrEnum):
    """What is known of a worker's tokens."""

    AGREES = "agrees"
    UNVERIFIED = "unverified"
    """It cannot be asked, or has not been yet."""
    DIFFERS = "differs"


@dataclass(frozen=True)
class Difference:
    """The first token that is another one."""

    probe: str
    index: int
    """Its place, from 0."""
    ours: int | None
    """None where the tokens have come to an end."""
    theirs: int | None
    before: str = ""
    """The text before it: the end of the probe's, as far as they are the same."""
    ours_text: str = ""
    theirs_text: str = ""
    """What our tokenizer makes of that id, which may not be what was meant."""

    def __str__(self) -> str:
        return (
            f'probe "{self.probe}", token {self.index} after {self.before!r}:'
            f" {_said(self.ours, self.ours_text)} here,"
            f" {_said(self.theirs, self.theirs_text)} there"
        )


@dataclass(frozen=True)
class Verdict:
    """What was found out about one worker and one model."""

    state: State
    why: str
    difference: Difference | None = None
    media: bool = False
    """Before an image too its tokens are ours."""
    left_out: bool | None = False
    """Tools of which none may be chosen are not in its prompts; None: that is not known."""


def answers(exact: Exact) -> dict[str, bytes]:
    """Return our ids of every probe that can be known, by its name."""
    found: dict[str, bytes] = {}
    for probe in PROBES:
        with suppress(Unlike):  # such requests are keyed by their text
            found[probe.name] = exact.ids(probe.endpoint, msgspec.json.encode(probe.body))
    return found


def head_answer(exact: Exact) -> bytes:
    """Return our ids before the image of the probe that has one; none if they are not known."""
    with suppress(Unlike):
        return exact.head(IMAGE.endpoint, msgspec.json.encode(IMAGE.body)).ids
    return b""


def first_difference(
    ours: Mapping[str, bytes], theirs: Mapping[str, bytes]
) -> tuple[str, int] | None:
    """Return the probe and the place of the first token that is another one.

    Only what both have is compared: a probe that we cannot express or that the worker refuses says
    nothing, as such a request is keyed by its text, or refused.
    """
    for name, one in ours.items():
        other = theirs.get(name)
        if other is not None and other != one:
            mine, its = _ids(one), _ids(other)
            pairs = enumerate(zip(mine, its, strict=False))
            shorter = min(len(mine), len(its))
            return name, next((place for place, (a, b) in pairs if a != b), shorter)
    return None


def difference(probe: str, index: int, ours: bytes, theirs: bytes, path: Path | None) -> Difference:
    """Describe it, with texts if `path` has a `tokenizer.json`; reading that takes a second."""
    mine, its = _ids(ours), _ids(theirs)
    tokenizer = _tokenizer(path)

    def text(ids: Sequence[int]) -> str:
        return tokenizer.decode(list(ids), skip_special_tokens=False) if tokenizer and ids else ""

    return Difference(
        probe,
        index,
        mine[index] if index < len(mine) else None,
        its[index] if index < len(its) else None,
        text(mine[max(0, index - _BEFORE) : index]),
        text(mine[index : index + 1]),
        text(its[index : index + 1]),
    )


def _tokenizer(path: Path | None) -> "Tokenizer | None":
    from tokenizers import Tokenizer  # noqa: PLC0415 - takes 5 MB: who gets here has it already

    try:
        return Tokenizer.from_file(str(path / TOKENIZER)) if path else None
    except Exception:  # noqa: BLE001 - that library raises plain Exceptions; there is no text then
        return None


def _ids(packed: bytes) -> "array[int]":
    return array("I", packed)


def _said(token: int | None, text: str) -> str:
    return "the end" if token is None else f"{token} {text!r}"
