"""Whether a worker makes the same tokens as the router, and if not, where they first differ."""

from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from router.rendering.errors import Unlike
from router.rendering.folder import TOKENIZER
from router.rendering.tokens import Exact
from router.tokenizers.probe import IMAGE, PROBES

if TYPE_CHECKING:
    from tokenizers import Tokenizer

#: Tokens shown before the first one that differs.
_BEFORE = 8


class State(StrEnum):
    """What is known of a worker's tokens."""

    AGREES = "agrees"
    UNVERIFIED = "unverified"
    """The worker cannot be asked, or has not been asked yet."""
    DIFFERS = "differs"


@dataclass(frozen=True)
class Difference:
    """The first token that differs."""

    probe: str
    index: int
    """Position of the token, from 0."""
    ours: int | None
    """None if the tokens end before it."""
    theirs: int | None
    before: str = ""
    """The text just before it: the last tokens that both have."""
    ours_text: str = ""
    theirs_text: str = ""
    """What our tokenizer makes of the worker's id, which may not be what the worker means by it."""

    def __str__(self) -> str:
        return (
            f'probe "{self.probe}", token {self.index} after {self.before!r}:'
            f" {_said(self.ours, self.ours_text)} here,"
            f" {_said(self.theirs, self.theirs_text)} there"
        )


@dataclass(frozen=True)
class Verdict:
    """The result of comparing one worker's tokens for one model."""

    state: State
    why: str
    difference: Difference | None = None
    media: bool = False
    """The tokens before an image agree too."""
    left_out: bool | None = False
    """Whether tools are left out of prompts with `tool_choice: none`; None: not known."""


def answers(exact: Exact) -> dict[str, bytes]:
    """Return our ids for every probe that we can tokenize, by the probe's name."""
    found: dict[str, bytes] = {}
    for probe in PROBES:
        with suppress(Unlike):  # such requests are keyed by their text
            found[probe.name] = exact.ids(probe.endpoint, msgspec.json.encode(probe.body))
    return found


def head_answer(exact: Exact) -> bytes:
    """Return our ids before the image of the image probe; empty if they are not known."""
    with suppress(Unlike):
        return exact.head(IMAGE.endpoint, msgspec.json.encode(IMAGE.body)).ids
    return b""


def first_difference(
    ours: Mapping[str, bytes], theirs: Mapping[str, bytes]
) -> tuple[str, int] | None:
    """Return the probe and the position of the first token that differs.

    Only probes that both have are compared. One that we cannot express or that the worker refuses
    says nothing, because such a request is keyed by its text, or refused.
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
    """Describe a difference, with texts if `path` has a `tokenizer.json`; takes a second."""
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
    from tokenizers import Tokenizer  # noqa: PLC0415 - takes 5 MB; loaded by now

    try:
        return Tokenizer.from_file(str(path / TOKENIZER)) if path else None
    except Exception:  # noqa: BLE001 - it raises plain Exceptions; no text then
        return None


def _ids(packed: bytes) -> "array[int]":
    return array("I", packed)


def _said(token: int | None, text: str) -> str:
    return "the end" if token is None else f"{token} {text!r}"
