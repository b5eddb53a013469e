"""The tokenizer in a model folder, loaded as one of Hugging Face's `tokenizers` library.

`tokenizer.json` is read directly. SentencePiece, tiktoken and older files are converted by
Transformers, as in engines (vLLM `tokenizers/hf.py`); it is an extra, `warmroute[transformers]`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from tokenizers import Tokenizer

SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token")
FILE = "tokenizer.json"
#: Set while Transformers is imported, so that it downloads nothing and does not warn of PyTorch.
_ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1"}
#: Files that Transformers can convert.
_OTHERS = (
    *("tokenizer.model", "spiece.model", "sentencepiece.bpe.model"),
    *("tiktoken.model", "*.tiktoken", "vocab.json", "vocab.txt"),
)


def vocabulary(path: Path) -> tuple[Tokenizer, Mapping[str, str]]:
    """Load the tokenizer, with special tokens known only to its Transformers class, if any.

    Raises ValueError if it cannot be read.
    """
    if not (path / FILE).is_file() and any(any(path.glob(name)) for name in _OTHERS):
        return _made(path)
    try:
        return Tokenizer.from_file(str(path / FILE)), {}
    except Exception as error:  # noqa: BLE001 - that library raises plain Exceptions
        raise ValueError(f"{path / FILE} cannot be read: {error}") from None


def _made(path: Path) -> tuple[Tokenizer, Mapping[str, str]]:
    if find_spec("transformers") is None:
        raise ValueError(
            f"{path} holds no {FILE}; what it holds instead is read by Transformers:"
            " pip install 'warmroute[transformers]'"
        )
    try:
        made: Any = _transformers().AutoTokenizer.from_pretrained(
            path, trust_remote_code=False, local_files_only=True
        )
        tokenizer = Tokenizer.from_str(made.backend_tokenizer.to_str())
    except Exception as error:  # noqa: BLE001 - that library raises all kinds of exceptions
        said = str(error).split("\n")[0][:200]
        raise ValueError(f"Transformers makes no {FILE} of {path}: {said}") from None
    named = {name: getattr(made, name, None) for name in SPECIAL}
    return tokenizer, {name: str(token) for name, token in named.items() if token is not None}


def _transformers() -> ModuleType:
    """Import Transformers, only when needed, because it is slow."""
    before = {name: os.environ.get(name) for name in _ENVIRONMENT}
    os.environ.update(_ENVIRONMENT)
    try:
        return import_module("transformers")
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
