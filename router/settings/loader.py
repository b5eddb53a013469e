"""Reads a YAML file or the arguments of a command into settings, or reports all mistakes at once.

Pydantic's errors become messages for operators: where in the file, and what is allowed. Arguments
(URLs of workers, a strategy and an address) are checked like a file, and can be written as one.
"""

import os
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, cast, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from ruamel.yaml import YAML

from router.settings import yaml as settings_yaml
from router.settings.checks import LISTEN
from router.settings.errors import KeyPath, Problem, SettingsError, nearest
from router.settings.files import Mark
from router.settings.fleet import StrategySettings, all_options, options_of
from router.settings.model import Settings
from router.settings.types import Address, url_address
from router.settings.yaml import Document

_SENTENCES = {
    "missing": "required key is missing",
    "extra_forbidden": "unknown key",
    "string_type": "must be text; put it in quotes",
    "int_type": "must be a whole number",
    "bool_type": "must be true or false",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "model_type": "must be a mapping",
    "dict_type": "must be a mapping",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
    "refused": "{message}",
    "value_error": "{error}",
}
MAX_BYTES = 1 << 20


def translate(error: ValidationError, document: Document) -> Iterator[Problem]:
    """Turn each error into a problem in the file, without the value, which may be a secret."""
    for detail in error.errors(include_url=False):
        # The first kind only follows from another error; the second is reported already.
        if detail["type"] != "default_factory_not_called" and detail["loc"] not in document.empty:
            yield _problem(detail, document)


def _problem(detail: ErrorDetails, document: Document) -> Problem:
    kind, path, context = detail["type"], detail["loc"], detail.get("ctx", {})
    message = _SENTENCES.get(kind, "{said}").format(**{"said": detail["msg"], **context})
    suggestion = context.get("suggestion")
    if kind == "extra_forbidden":
        suggestion = nearest(path[-1], keys_of(path[:-1], document.data))
    elif kind == "literal_error":
        message = message.replace("'", "")
        allowed = context["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        if isinstance(detail["input"], str) and len(allowed) > 1:
            suggestion = nearest(detail["input"], allowed)
    elif kind == "missing":
        return document.missing(path, message)
    return document.problem(path, message, suggestion)


def keys_of(path: KeyPath, data: object) -> list[str]:
    """Return the keys that the mapping at `path` may have."""
    model: type[BaseModel] = Settings
    named = False
    for part in path:
        data = cast("dict[int | str, object]", data)[part]  # may be a list; pydantic checked it
        if isinstance(part, int):
            continue
        annotation = model.model_fields[part].annotation
        named = annotation is StrategySettings
        if named:
            if isinstance(data, dict) and "name" not in data:
                return ["name", *sorted(all_options())]
            model = options_of(data["name"] if isinstance(data, dict) else data)
        else:
            model = _model(annotation)
    return ["name"] * named + list(model.model_fields)


def _model(annotation: object) -> type[BaseModel]:
    """Return the model in a field's type, such as `X` in `tuple[X, ...]`."""
    return next(
        inner
        for inner in (annotation, *get_args(annotation))
        if isinstance(inner, type) and issubclass(inner, BaseModel)
    )


def load(path: str | os.PathLike[str]) -> Settings:
    """Read a settings file. Raises SettingsError with every problem in it."""
    return loads(read(Path(path)), str(path), Path(path).parent)


def loads(text: str, file: str = "settings", folder: Path | None = None) -> Settings:
    """Read settings from a text; problems name `file`, and paths are relative to `folder`."""
    document = settings_yaml.parse(text, file)
    return validate(document, document.problems, folder or Path())


def validate(document: Document, known: Iterable[Problem], folder: Path) -> Settings:
    """Validate a document. Raises SettingsError with the problems `known` before and all others."""
    problems, files = list(known), dict[Path, Mark]()
    try:
        context = {"folder": folder, "files": files}
        settings = Settings.model_validate(document.data, context=context)
    except ValidationError as error:
        problems += translate(error, document)
    if problems:
        # Outside the handler: a traceback must not show pydantic's error, which holds the values.
        raise SettingsError(in_order(problems), files)
    return settings


def in_order(problems: Iterable[Problem]) -> list[Problem]:
    """Return problems in the order of the file."""
    return sorted(problems, key=lambda problem: (problem.line or 0, problem.column or 0))


def read(path: Path) -> str:
    """Return the text of a file. Raises SettingsError."""
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


#: Where a file to start from takes the key of its clients from.
KEY = "${WARMROUTE_KEY}"
_AUTHORITY = re.compile(
    r"(?:(https?)://)?(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]+)(?:[/?#]\S*)?"
)


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a command line says."""

    urls: tuple[str, ...]
    strategy: str | None = None
    listen: Address = LISTEN

    def settings(self, *, served: bool = True) -> Settings:
        """Return the settings. Raises SettingsError with every mistake.

        If they are `served`, an address that others can reach is one: only a file has keys.
        """
        data, places = self._data(), dict[KeyPath, tuple[int, int]]()
        places |= {("workers", number): (1, 1) for number in range(len(self.urls))}
        places |= {("strategy",): (1, 1), ("listen",): (1, 1)}
        if not served and not self.listen.is_loopback:
            data["auth"] = "none"
        try:
            return Settings.model_validate(data)
        except ValidationError as error:
            document = Document("", data, places, [], set())
            problems = [self._problem(problem) for problem in translate(error, document)]
        raise SettingsError(problems)

    def words(self) -> str:
        """Return the arguments as they are typed."""
        words = [*self.urls]
        words += ["--strategy", self.strategy] if self.strategy else []
        words += ["--listen", str(self.listen)] if self.listen != LISTEN else []
        return shlex.join(words)

    def file(self) -> str:
        """Return a settings file that says the same, with a key if others can reach `listen`."""
        settings, text = self.settings(served=False), StringIO()
        data: dict[str, object] = {"listen": str(self.listen)}
        if not self.listen.is_loopback:
            data["auth"] = {"keys": [KEY]}
        data["strategy"] = settings.strategy.name
        data["workers"] = [worker.url for worker in settings.workers]
        yaml: Any = YAML()
        yaml.width = 1 << 20  # no value is folded
        yaml.indent(mapping=2, sequence=4, offset=2)
        yaml.dump(data, text)
        return text.getvalue()

    def _data(self) -> dict[str, object]:
        strategy = {"strategy": self.strategy} if self.strategy else {}
        return {"listen": str(self.listen), **strategy, "workers": list(self.urls)}

    def _problem(self, problem: Problem) -> Problem:
        """Return a problem as one of the command line."""
        where, message, suggestion = problem.field, problem.message, problem.suggestion
        if number := re.fullmatch(r"workers\[([0-9]+)\]", where):
            suggestion = _meant(self.urls[int(number[1])])
        elif where == "listen":  # it is an address: others can reach it
            message = (
                f"{self.listen} can be reached from other machines, and only a file can say who may"
                f" come in: `warmroute check {self.words()} > warmroute.yaml` writes one that asks"
                " for a key, to be served with --config"
            )
        option = "--" * (where in {"listen", "strategy"})
        return Problem(option + where, None, None, "", message, suggestion)


def _meant(text: str) -> str | None:
    """Return the URLs that were probably meant by what is none, if that can be told."""
    matches = [_AUTHORITY.fullmatch(part) for part in text.split(",")]
    urls = [f"{match[1] or 'http'}://{match[2]}{match[3]}" for match in matches if match]
    good = len(urls) == len(matches) and all(map(_is_url, urls))
    return " ".join(urls) if good and not _is_url(text) else None


def _is_url(text: str) -> bool:
    try:
        url_address(text)
    except ValueError:
        return False
    return True
