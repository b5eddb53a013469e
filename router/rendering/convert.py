"""Tokenizers in other formats than `tokenizer.json`: SentencePiece, tiktoken, and older ones.

Engines have Transformers convert them when they load a model (vLLM tokenizers/hf.py). So does this
module, with the same library, in a separate process (`trial`). The library is large, so it is an
extra, `warmroute[transformers]`. It needs no PyTorch, and no code from a model's folder is run.
"""

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from router.rendering.folder import LARGEST, OTHERS, SPECIAL, TOKENIZER, BadFolder


class Converted(NamedTuple):
    """A converted tokenizer."""

    text: str
    """The content of a `tokenizer.json`."""
    special_tokens: Mapping[str, str]
    """Special tokens given to templates, by attribute, including those of the model's class."""


def converted(path: Path) -> Converted:
    """Convert the tokenizer in a model's folder. Takes seconds. Raises BadFolder."""
    if find_spec("transformers") is None:
        raise BadFolder(
            f"{path} holds no {TOKENIZER}; what it holds instead is read by Transformers:"
            " pip install 'warmroute[transformers]'"
        )
    _check_sizes(path)
    os.environ["HF_HUB_OFFLINE"] = "1"  # read at import
    from transformers import AutoTokenizer  # noqa: PLC0415 - slow to import, and seldom needed

    try:
        made = AutoTokenizer.from_pretrained(path, trust_remote_code=False, local_files_only=True)
        text = made.backend_tokenizer.to_str()
    except Exception as error:  # noqa: BLE001 - that library raises all kinds of exceptions
        said = str(error).split("\n")[0][:200]
        raise BadFolder(f"Transformers makes no {TOKENIZER} of {path}: {said}") from None
    named = {name: getattr(made, name, None) for name in SPECIAL}
    return Converted(text, {name: str(token) for name, token in named.items() if token is not None})


def _check_sizes(path: Path) -> None:
    for pattern in OTHERS:
        for file in path.glob(pattern):
            if file.stat().st_size > LARGEST:
                raise BadFolder(f"{file} is over {LARGEST >> 20} MiB")
