"""A model's folder: its tokenizer, its chat templates and its special tokens. Only these are read.

What stands where, and what wins over what, is as Transformers has it
(tokenization_utils_base.py, `_from_pretrained`): `chat_template.jinja` before the field of
`tokenizer_config.json`, and a template named `tool_use` where there are tools.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from router.identity.decoded import Json

TOKENIZER = "tokenizer.json"
_CONFIG = "tokenizer_config.json"
_MODEL = "config.json"
_TEMPLATE = "chat_template.jinja"
_MORE_TEMPLATES = "additional_chat_templates"
#: A template of a processor, for models that see or hear; engines take it first.
_PROCESSOR = ("chat_template.json", "processor_config.json")
#: What may be fetched of a model's repository.
PATTERNS = (
    TOKENIZER,
    _CONFIG,
    "special_tokens_map.json",
    _TEMPLATE,
    f"{_MORE_TEMPLATES}/*.jinja",
    *_PROCESSOR,
    "tekken.json",
    "tiktoken.model",
    "tokenizer.model",
    _MODEL,
)
#: Those that templates are given (SPECIAL_TOKENS_ATTRIBUTES of Transformers).
_SPECIAL = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
#: Bytes of the largest file that is read.
LARGEST = 256 << 20


class BadFolder(Exception):
    """Something in a model's folder is not as it should be; the message says what and where."""


@dataclass(frozen=True)
class ModelFolder:
    """What routing needs of a model's folder."""

    path: Path
    templates: dict[str, str] = field(default_factory=dict)
    """Chat templates by name; the usual one is `default`."""
    special_tokens: dict[str, str] = field(default_factory=dict)
    """By attribute, `bos_token` say."""
    config: dict[str, Any] = field(default_factory=dict)
    """The whole of `tokenizer_config.json`."""
    model_type: str = ""
    """What `config.json` calls the model's architecture."""

    def template(self, *, tools: bool) -> str | None:
        """Return the template for requests with or without tools."""
        if tools and "tool_use" in self.templates:
            return self.templates["tool_use"]
        return self.templates.get("default")


def read_folder(path: Path) -> ModelFolder:
    """Read a model's folder. Raises BadFolder."""
    if not path.is_dir():
        raise BadFolder(f"{path} is not a folder")
    config = _json(path / _CONFIG)
    if not isinstance(config, dict):
        raise BadFolder(f"{path / _CONFIG} is not a JSON object")
    model = _json(path / _MODEL)
    kind = model.get("model_type") if isinstance(model, dict) else None
    return ModelFolder(
        path,
        _templates(path, config),
        _special_tokens(path, config),
        config,
        kind if isinstance(kind, str) else "",
    )


def _templates(path: Path, config: dict[str, Any]) -> dict[str, str]:
    given = config.get("chat_template")
    found: dict[str, str] = {}
    if isinstance(given, str):
        found["default"] = given
    elif isinstance(given, list):
        for one in given:
            if isinstance(one, dict) and isinstance(one.get("template"), str):
                found[str(one.get("name"))] = one["template"]
    for more in sorted((path / _MORE_TEMPLATES).glob("*.jinja")):
        found[more.stem] = _text(more)
    if (path / _TEMPLATE).is_file():
        found["default"] = _text(path / _TEMPLATE)
    for name in _PROCESSOR:
        processor = _json(path / name)
        if isinstance(processor, dict) and isinstance(processor.get("chat_template"), str):
            found.setdefault("default", processor["chat_template"])
    return found


def _special_tokens(path: Path, config: dict[str, Any]) -> dict[str, str]:
    older = _json(path / "special_tokens_map.json")
    merged = {**(older if isinstance(older, dict) else {}), **config}
    found = {}
    for name in _SPECIAL:
        token = merged.get(name)
        if isinstance(token, dict):  # an AddedToken, with flags
            token = token.get("content")
        if isinstance(token, str):
            found[name] = token
    return found


def _json(path: Path) -> Json:
    if not path.is_file():
        return {}
    try:
        return json.loads(_text(path))
    except ValueError as error:
        raise BadFolder(f"{path} is not JSON: {error}") from None


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST:
            raise BadFolder(f"{path} is over {LARGEST >> 20} MiB")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadFolder(f"{path} cannot be read: {error}") from None
