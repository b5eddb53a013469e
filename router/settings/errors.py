"""Mistakes in a settings file, as operators read them."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from pydantic_core import InitErrorDetails, PydanticCustomError, ValidationError

from router.runtime.quote import shown
from router.settings.files import Mark

KeyPath = tuple[str | int, ...]
"""The path of a value, such as ("workers", 1, "api_key")."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake and where it is."""

    file: str
    line: int | None
    """Counted from 1; None for the whole file."""
    column: int | None
    field: str
    """Such as `workers[1].api_key`; empty for the whole file."""
    message: str
    suggestion: str | None = None
    """What was probably meant."""

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        field = f"{self.field}: " if self.field else ""
        hint = f'; did you mean "{self.suggestion}"?' if self.suggestion else ""
        return f"{where}: {field}{self.message}{hint}"


class SettingsError(Exception):
    """The settings cannot be used; the message lists all problems, one per line."""

    def __init__(self, problems: list[Problem], files: Mapping[Path, Mark] | None = None) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems
        self.files = files or {}
        """Files that the settings name, such as certificates, and their states before they were
        read: the mistake may be in one of them."""


def dotted(path: KeyPath) -> str:
    """("workers", 1, "url") → `workers[1].url`; on one line, whatever characters keys contain."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if re.fullmatch(r"[\w-]{1,60}", part) else f".{shown(part)}"
    return text.removeprefix(".")


def refusal(path: KeyPath, message: str, suggestion: str | None = None) -> InitErrorDetails:
    """Make one error of our own checks, at `path` below the value that is being validated."""
    context = {"message": message, "suggestion": suggestion}
    return InitErrorDetails(
        type=PydanticCustomError("refused", "{message}", context), loc=path, input=None
    )


def refuse(title: str, refusals: list[InitErrorDetails]) -> ValidationError:
    """Make the error to raise in a validator; pydantic puts each path below the outer one."""
    return ValidationError.from_exception_data(title, refusals, hide_input=True)


def nearest(word: object, known: Iterable[str]) -> str | None:
    """Return the known word that was probably meant, if any is close enough."""
    plain = {_plain(name): name for name in known}
    close = get_close_matches(_plain(str(word)[:100]), plain, n=1, cutoff=0.6)
    return plain[close[0]] if close else None


def _plain(word: str) -> str:
    return word.lower().replace("-", "_")
