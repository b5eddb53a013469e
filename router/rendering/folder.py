"""A model's folder: its tokenizer, chat templates and special tokens. Nothing else is read.

Where things are, and what takes precedence, is as in Transformers (tokenization_utils_base.py,
`_from_pretrained`): `chat_template.jinja` before the field of `tokenizer_config.json`, and a
template named `tool_use` for requests with tools.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from router.rendering.messages import Json

TOKENIZER = "tokenizer.json"
#: Tokenizers in Mistral's own format.
MISTRAL = ("tekken.json", "tokenizer.model.v*")
#: Tokenizers that the engine converts to a `tokenizer.json`: SentencePiece, tiktoken, older ones.
OTHERS = (
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tiktoken.model",
    "*.tiktoken",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
)
_CONFIG = "tokenizer_config.json"
_MODEL = "config.json"
_MISTRALS_MODEL = "params.json"
_TEMPLATE = "chat_template.jinja"
_MORE_TEMPLATES = "additional_chat_templates"
#: Extra files of multimodal models, and the older file of their template.
_PROCESSORS = ("processor_config.json", "preprocessor_config.json")
_OLDER_TEMPLATE = "chat_template.json"
#: Models, by type or architecture, whose prompts engines build with model-specific code (vLLM
#: config/model.py, where it chooses the tokenizer's mode; and the Harmony models).
_PROGRAMS = frozenset(
    (
        "gpt_oss",
        "deepseek_v32",
        "deepseek_v4",
        "deepseek_v41",
        "kimi_k3",
        "inkling",
        "DeepseekV32ForCausalLM",
        "DeepseekV4ForCausalLM",
        "DeepseekV41ForCausalLM",
        "DeepseekV4ForConditionalGeneration",
        "KimiK3ForConditionalGeneration",
        "InklingForCausalLM",
        "InklingForConditionalGeneration",
    )
)
#: Models that engines tokenize with a library of their own.
_TOKENIZERS = frozenset(("MoonshotKimiaForCausalLM",))
#: Tokenizer classes that follow `tokenizer.json`. Others may have code of their own that takes
#: little more from it than vocabulary and merges (Transformers 5, tokenization_utils_tokenizers.py,
#: `convert_to_native_format`).
_AS_WRITTEN = frozenset(("TokenizersBackend", "PythonBackend", "PreTrainedTokenizer"))
#: Fields with further special tokens; the second is the older spelling.
UNNAMED = ("extra_special_tokens", "additional_special_tokens")
#: Files that may be fetched from a model's repository.
PATTERNS = (
    *(TOKENIZER, _CONFIG, "special_tokens_map.json", *MISTRAL, *OTHERS, _MODEL, _MISTRALS_MODEL),
    *(_TEMPLATE, f"{_MORE_TEMPLATES}/*.jinja", _OLDER_TEMPLATE, *_PROCESSORS),
)
#: Special tokens given to templates (SPECIAL_TOKENS_ATTRIBUTES of Transformers).
SPECIAL = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
#: Largest file that is read, in bytes.
MAX_FILE_BYTES = 256 << 20


class BadFolder(Exception):
    """Something in a model's folder is wrong; the message says what and where."""


@dataclass(frozen=True)
class ModelFolder:
    """What routing needs of a model's folder."""

    path: Path
    templates: dict[str, str] = field(default_factory=dict)
    """Chat templates by name; the usual one is `default`."""
    special_tokens: dict[str, str] = field(default_factory=dict)
    """Special tokens by attribute, for example `bos_token`."""
    config: dict[str, Any] = field(default_factory=dict)
    """All of `tokenizer_config.json`, with the special tokens of their older file."""
    own_program: bool = False
    """Whether engines build chat prompts with code of their own rather than a template."""
    own_tokenizer: bool = False
    """Whether engines tokenize with a library of their own, not as `tokenizer.json` says."""
    mistral: bool = False
    """Whether engines use Mistral's library, unless told otherwise."""
    processor: str | None = None
    """The template of a multimodal model; takes precedence for requests without tools."""

    @property
    def rebuilt(self) -> bool:
        """Return true if engines build the tokenizer by its class: it may differ from the file."""
        named = self.config.get("tokenizer_class")
        return isinstance(named, str) and named.removesuffix("Fast") not in _AS_WRITTEN

    def template(self, *, tools: bool) -> str | None:
        """Return the template for requests with or without tools."""
        if tools and "tool_use" in self.templates:
            return self.templates["tool_use"]
        if not tools and self.processor is not None:
            return self.processor
        return self.templates.get("default")


def read_folder(path: Path) -> ModelFolder:
    """Read a model's folder. Raises BadFolder."""
    if not path.is_dir():
        raise BadFolder(f"{path} is not a folder")
    config = _json(path / _CONFIG)
    if not isinstance(config, dict):
        raise BadFolder(f"{path / _CONFIG} is not a JSON object")
    config = _with_older(path, config)
    templates = _templates(path, config)
    return ModelFolder(
        path,
        templates,
        _special_tokens(config),
        config,
        own_program=_is_one_of(path, _PROGRAMS),
        own_tokenizer=_is_one_of(path, _TOKENIZERS),
        mistral=_is_of_mistrals_format(path),
        processor=_processor_template(path, config),
    )


def has_tokenizer(path: Path, patterns: Sequence[str] = (TOKENIZER, *MISTRAL, *OTHERS)) -> bool:
    """Return true if a folder holds any tokenizer. Raises OSError."""
    return any(file.is_file() for pattern in patterns for file in path.glob(pattern))


def check_sizes(files: Iterable[Path]) -> None:
    """Raise BadFolder if a file is too large to be read, OSError if it is missing."""
    for file in files:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise BadFolder(f"{file} is over {MAX_FILE_BYTES >> 20} MiB")


def _is_one_of(path: Path, kinds: frozenset[str]) -> bool:
    """Return true if `config.json` names the type or an architecture of one of these models."""
    model = _json(path / _MODEL)
    if not isinstance(model, dict):
        return False
    architectures = model.get("architectures")
    names = [model.get("model_type"), *(architectures if isinstance(architectures, list) else ())]
    return any(isinstance(name, str) and name in kinds for name in names)


def _is_of_mistrals_format(path: Path) -> bool:
    """If the folder has no weights, `params.json`, the format's description of a model, decides."""
    if not any(any(path.glob(pattern)) for pattern in MISTRAL):
        return False
    if any(path.glob("*.safetensors")):
        return any(path.glob("consolidated*.safetensors"))
    return (path / _MISTRALS_MODEL).is_file() or not has_tokenizer(path, (TOKENIZER, *OTHERS))


def _templates(path: Path, config: dict[str, Any]) -> dict[str, str]:
    """Return the templates in files if there are any, else those of the configuration."""
    files = {more.stem: more for more in sorted((path / _MORE_TEMPLATES).glob("*.jinja"))}
    if (path / _TEMPLATE).is_file():
        files["default"] = path / _TEMPLATE
    if files:
        return {name: _text(file) for name, file in files.items()}
    given = config.get("chat_template")
    if isinstance(given, str):
        return {"default": given}
    entries = given if isinstance(given, list) else []
    return {
        str(entry.get("name")): entry["template"]
        for entry in entries
        if isinstance(entry, dict) and isinstance(entry.get("template"), str)
    }


def _processor_template(path: Path, config: dict[str, Any]) -> str | None:
    """Return the template of the model's processor, if any (Transformers, processing_utils.py)."""
    own = [_json(path / name) for name in _PROCESSORS]
    template = own[0].get("chat_template") if isinstance(own[0], dict) else None
    if template is None:
        older = _json(path / _OLDER_TEMPLATE)
        template = older.get("chat_template") if isinstance(older, dict) else None
    has_class = any(
        isinstance(config_entry, dict) and "processor_class" in config_entry
        for config_entry in (*own, config)
    )
    return template if has_class and isinstance(template, str) else None


def _with_older(path: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration, with `special_tokens_map.json` if that still counts."""
    if "added_tokens_decoder" in config:
        return config
    older = _json(path / "special_tokens_map.json")
    if not isinstance(older, dict):
        return config
    named = {name: older[name] for name in older if name in SPECIAL or name in UNNAMED}
    return {**config, **named}


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    tokens = {}
    for name in SPECIAL:
        token = config.get(name)
        if isinstance(token, dict):  # an AddedToken, with flags
            token = token.get("content")
        if isinstance(token, str):
            tokens[name] = token
    return tokens


def _json(path: Path) -> Json:
    if not path.is_file():
        return {}
    try:
        return json.loads(_text(path))
    except ValueError as error:
        raise BadFolder(f"{path} is not JSON: {error}") from None


def _text(path: Path) -> str:
    try:
        check_sizes([path])
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadFolder(f"{path} cannot be read: {error}") from None
