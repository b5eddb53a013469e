"""Folders of models whose tokenizers are in formats other than `tokenizer.json`."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.rendering.families import CORPUS


class _Kind(NamedTuple):
    file: str
    """File name in the library's data."""
    name: str
    """File name in a model folder."""
    version: str | None = None
    """Version of the conversation format, if it differs from the file's."""


KINDS: Mapping[str, _Kind] = {
    "tekken-v3": _Kind("tekken_240718.json", "tekken.json"),
    "tekken-v7": _Kind("tekken_240911.json", "tekken.json", "v7"),
    "tekken-v11": _Kind("tekken_240911.json", "tekken.json", "v11"),
    "tekken-v13": _Kind("tekken_240911.json", "tekken.json", "v13"),
    "sentencepiece-v3": _Kind("mistral_instruct_tokenizer_240323.model.v3", "tokenizer.model.v3"),
    "sentencepiece-v7": _Kind("mistral_instruct_tokenizer_241114.model.v7", "tokenizer.model.v7"),
}
#: The special tokens of later versions, which the library's files do not have.
_SPECIAL = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]"),
    *("[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
    *("[TOOL_CONTENT]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"),
)


def make_mistral(folder: Path, kind: str) -> Path:
    """Write a folder in Mistral's format, with a vocabulary that comes with its library."""
    import mistral_common  # noqa: PLC0415 - an extra

    made = KINDS[kind]
    source = Path(mistral_common.__file__).parent / "data" / made.file
    folder.mkdir(parents=True, exist_ok=True)
    if made.version is None:
        shutil.copyfile(source, folder / made.name)
        return folder
    data = json.loads(source.read_text(encoding="utf-8"))
    data["config"]["version"] = made.version
    data["special_tokens"] = [
        {"rank": rank, "token_str": text, "is_control": True} for rank, text in enumerate(_SPECIAL)
    ]
    data.pop("image", None)
    (folder / made.name).write_text(json.dumps(data), encoding="utf-8")
    return folder


#: Of a model like Llama 2, whose BOS token is known only to its tokenizer class.
_TEMPLATE = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"


def make_sentencepiece(folder: Path) -> Path:
    """Write a folder with a small SentencePiece vocabulary, like that of Llama 2."""
    import sentencepiece  # noqa: PLC0415 - an extra

    folder.mkdir(parents=True, exist_ok=True)
    corpus = folder.with_suffix(".txt")
    corpus.write_text("\n".join([*CORPUS, "".join(CORPUS)]), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus),
        model_prefix=str(folder / "tokenizer"),
        model_type="bpe",
        vocab_size=400,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    config = {"tokenizer_class": "LlamaTokenizer", "chat_template": _TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return folder
