"""`tokenizer:` in the YAML: where a model's tokenizer comes from, and how engines use it."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    StrictBool,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from router.rendering.folder import has_tokenizer
from router.runtime.quote import shown, shown_file
from router.settings.errors import nearest, refusal, refuse
from router.settings.files import ReadableFile
from router.settings.types import Model

_HUB_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*/[A-Za-z0-9_][A-Za-z0-9._-]*", re.ASCII)
MAX_HUB_ID_CHARS = 96


def is_hub_id(text: str) -> bool:
    """Return whether a text could be the id of a model on the hub: `org/name`."""
    return (
        len(text) <= MAX_HUB_ID_CHARS
        and _HUB_ID.fullmatch(text) is not None
        and "--" not in text
        and ".." not in text
        and not text.endswith((".", "-", ".git"))
    )


#: Sources that are neither a folder nor on the hub.
WORDS = ("auto", "bytes", "worker")
#: Settings that have no effect with a source, and why.
_USELESS = {
    "bytes": (("chat_template", "keywords", "forward_token_ids"), "nothing is tokenized"),
    "worker": (("chat_template", "keywords"), "it is the worker that applies its template"),
}


def _source(value: object, info: ValidationInfo) -> str:
    """Check a source: a word, a folder or a hub id; an existing folder is never a hub id."""
    text = value if isinstance(value, str) else ""
    if text in WORDS:
        return text
    base = (info.context or {}).get("folder")
    if text.startswith(("/", ".")) or (base is not None and text and _is_folder(base / text)):
        return str(_folder(Path(base or "") / text))
    if not is_hub_id(text):
        message = f"{shown(value)} is not a tokenizer: write {', '.join(WORDS)},"
        message += " a folder such as ./llama, or a hub id such as org/name"
        raise refuse("tokenizer", [refusal((), message, nearest(text, WORDS))])
    return text


def _folder(path: Path) -> Path:
    """Check a folder and make it absolute, so that it is found wherever settings are re-read."""
    if not _is_folder(path):
        raise ValueError(f"folder {shown(str(path), 400)} does not exist")
    if not has_tokenizer(path):
        raise ValueError(
            f"folder {shown(str(path), 400)} holds no tokenizer.json and no other tokenizer"
        )
    return path.absolute()


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # not a valid file name
        return False


def _template(path: Path) -> Path:
    """Check that a template compiles. Raises ValueError with a sentence."""
    import jinja2  # noqa: PLC0415 - takes 2 MB, needed only with a template

    from router.rendering.sandbox import TOO_DEEP  # noqa: PLC0415
    from router.rendering.template import ChatTemplate  # noqa: PLC0415

    try:
        ChatTemplate(path.read_text(encoding="utf-8"), {})
    except UnicodeDecodeError:
        raise ValueError(f"{shown_file(path)} is not UTF-8") from None
    except jinja2.TemplateSyntaxError as error:
        message = f"{shown_file(path)} is not a chat template: line {error.lineno}: {error.message}"
        raise ValueError(message) from None
    except jinja2.TemplateError as error:
        raise ValueError(f"{shown_file(path)} is not a chat template: {error}") from None
    except TOO_DEEP:
        message = "is not a chat template that can be compiled: it is nested too deeply"
        raise ValueError(f"{shown_file(path)} {message}") from None
    return path


Source = Annotated[
    str, BeforeValidator(_source), WithJsonSchema({"type": "string", "minLength": 1})
]
"""One of `WORDS`, an absolute path, or a hub id."""


class TokenizerSettings(Model):
    """How prompts are turned into the tokens that the engine will see; a source alone stands for
    one with defaults."""

    source: Source = "auto"
    """Where tokenizers come from: `auto`, as each worker's list of models tells; a folder; a hub
    id, `org/name`; `worker`, which is asked for every prompt; or `bytes`: from nowhere, prompts
    are compared by their text. Default: auto."""
    chat_template: Annotated[ReadableFile, AfterValidator(_template)] | None = None
    """File of the template that engines are given with `--chat-template`. Default: the model's
    own."""
    keywords: dict[str, Any] = {}  # noqa: RUF012 - pydantic copies it
    """Keywords that engines are given with `--default-chat-template-kwargs`. Default: `{}`."""
    mode: Literal["auto", "hf", "mistral"] = "auto"
    """What engines are given with `--tokenizer-mode`: `mistral` is Mistral's own library, `hf` the
    usual way; `auto`, the first for models in Mistral's format. Default: auto."""
    forward_token_ids: StrictBool = False
    """Send the tokens along, so that the engine need not make them again. Default: false."""

    @model_validator(mode="before")
    @classmethod
    def _from_source(cls, value: object) -> object:
        return value if isinstance(value, Mapping | cls) else {"source": value}

    @model_validator(mode="after")
    def _of_use(self) -> Self:
        names, why = _USELESS.get(self.source, ((), ""))
        refusals = [
            refusal((name,), f"is of no use with {self.source}: {why}")
            for name in names
            if getattr(self, name)
        ]
        if refusals:
            raise refuse("tokenizer", refusals)
        return self
