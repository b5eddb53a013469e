"""From a YAML file to settings, or to all that is wrong with it at once."""

import os
from pathlib import Path

from pydantic import ValidationError

from router import settings_yaml
from router.settings import Settings
from router.settings_describe import Row, describe
from router.settings_errors import Problem, SettingsError
from router.settings_messages import translate
from router.settings_schema import schema, schema_text

__all__ = [
    "Problem",
    "Row",
    "SettingsError",
    "describe",
    "load",
    "loads",
    "schema",
    "schema_text",
]

MAX_BYTES = 1 << 20


def load(path: str | os.PathLike[str]) -> Settings:
    """Read a settings file. Raises SettingsError with every problem in it."""
    return loads(_read(Path(path)), str(path), Path(path).parent)


def loads(text: str, file: str = "settings", folder: Path | None = None) -> Settings:
    """Read settings from a text; `file` is what problems call it, `folder` where paths begin."""
    document = settings_yaml.parse(text, file)
    problems = list(document.problems)
    try:
        settings = Settings.model_validate(document.data, context={"folder": folder or Path()})
    except ValidationError as error:
        problems += translate(error, document)
    if problems:
        # Outside the handler: a traceback must not show pydantic's error, which knows the values.
        raise SettingsError(sorted(problems, key=lambda one: (one.line or 0, one.column or 0)))
    return settings


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise _refused(path, "no such file") from None
    except IsADirectoryError:
        raise _refused(path, "is a directory; name the file in it") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _refused(path, f"cannot be read: {reason}") from None
    if len(content) > MAX_BYTES:
        raise _refused(path, "is larger than 1MiB")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _refused(path, "is not UTF-8", content.count(b"\n", 0, error.start) + 1) from None


def _refused(path: Path, message: str, line: int | None = None) -> SettingsError:
    return SettingsError([Problem(str(path), line, None, "", message)])
