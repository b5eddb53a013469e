"""Turns pydantic's errors into messages for operators: where in the file, and what is allowed."""

from collections.abc import Iterator
from typing import cast, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from router.settings.errors import KeyPath, Problem, nearest
from router.settings.model import Settings
from router.settings.strategy import StrategySettings, all_options, options_of
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


def translate(error: ValidationError, document: Document) -> Iterator[Problem]:
    """Turn each error into a problem in the file, without the value, which may be a secret."""
    for found in error.errors(include_url=False):
        # The first kind only follows from another error; the second is reported already.
        if found["type"] != "default_factory_not_called" and found["loc"] not in document.empty:
            yield _problem(found, document)


def _problem(found: ErrorDetails, document: Document) -> Problem:
    kind, path, context = found["type"], found["loc"], found.get("ctx", {})
    message = _SENTENCES.get(kind, "{said}").format(**{"said": found["msg"], **context})
    suggestion = context.get("suggestion")
    if kind == "extra_forbidden":
        suggestion = nearest(path[-1], keys_of(path[:-1], document.data))
    elif kind == "literal_error":
        message = message.replace("'", "")
        allowed = context["expected"].replace("'", "").replace(" or ", ", ").split(", ")
        if isinstance(found["input"], str) and len(allowed) > 1:
            suggestion = nearest(found["input"], allowed)
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
