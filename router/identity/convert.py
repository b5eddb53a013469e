"""Tokenizers in other formats than `tokenizer.json`: SentencePiece's, tiktoken's, and older ones.

Engines have Transformers make the usual kind of them as they load a model (vLLM tokenizers/hf.py).
So does this, by the same library, in a process of its own (`trial`). It is an extra,
`warmroute[transformers]`, for its size; no PyTorch, and no code from a model's folder is run.
"""

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from router.identity.folder import LARGEST, OTHERS, SPECIAL, TOKENIZER, BadFolder


class Converted(NamedTuple):
    """What became of it."""

    text: str
    """Of a `tokenizer.json`."""
    special_tokens: Mapping[str, str]
    """Those that templates are given, by attribute, the ones of the model's class included."""


def converted(path: Path) -> Converted:
    """Make it of the files in a model's folder. Takes seconds. Raises BadFolder."""
    if find_spec("transformers") is None:
        raise BadFolder(
            f"{path} holds no {TOKENIZER}; what it holds instead is read by Transformers:"
            " pip install 'warmroute[transformers]'"
        )
    _check_sizes(path)
    os.environ["HF_HUB_OFFLINE"] = "1"  # read as it is imported
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
