"""Small model folders that resemble the model families in common use."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from tests.rendering.templates import CHATML, GEMMA, LLAMA, MISTRAL, QWEN, WITNESS, WITNESS_PARTS

#: Text on which the small vocabularies are trained.
CORPUS = (
    "The weather in Paris is fine today, and the function get_weather returns it as JSON. ",
    "You are a helpful assistant. What is the capital of France? It is Paris, of course. ",
    '{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}',
    "system user assistant tool developer\n\nCutting Knowledge Date: December 2023\nToday Date: ",
    "def main(argv: list[str]) -> int:\n    return 0 if argv else 1\n\n# Zürich, 東京, 👍\n",
)

_CHATML_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_THINKING = ("<think>", "</think>", "<tool_call>", "</tool_call>")


class Family(NamedTuple):
    """The chat template and special tokens of one family."""

    template: str
    special: tuple[str, ...]
    bos: str | None = None
    eos: str | None = None
    pad: str | None = None
    prepends: bool = False
    """Whether its tokenizer puts BOS before text if special tokens are requested."""
    added: tuple[str, ...] = ()
    """Added tokens that are not special."""


FAMILIES: Mapping[str, Family] = {
    "chatml": Family(CHATML, _CHATML_TOKENS, eos="<|im_end|>", pad="<|endoftext|>"),
    "llama": Family(
        LLAMA,
        ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
         "<|eot_id|>"),
        bos="<|begin_of_text|>",
        eos="<|eot_id|>",
        prepends=True,
    ),
    "mistral": Family(
        MISTRAL,
        ("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]",
         "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
        bos="<s>",
        eos="</s>",
        prepends=True,
    ),
    "qwen": Family(
        QWEN, _CHATML_TOKENS, eos="<|im_end|>", pad="<|endoftext|>", added=_THINKING
    ),
    "gemma": Family(
        GEMMA,
        ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>",
         "<start_of_image>"),
        bos="<bos>",
        eos="<eos>",
        pad="<pad>",
        prepends=True,
    ),
    "witness": Family(WITNESS, _CHATML_TOKENS, bos="<|endoftext|>", eos="<|im_end|>"),
    "witness-parts": Family(
        WITNESS_PARTS, _CHATML_TOKENS, bos="<|endoftext|>", eos="<|im_end|>", prepends=True
    ),
}  # fmt: skip


def train(family: Family, corpus: Sequence[str] = CORPUS, vocabulary: int = 600) -> Tokenizer:
    """Train a byte-level BPE with the family's tokens; the result depends only on the arguments."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        show_progress=False,
        special_tokens=list(family.special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(_lines(corpus), trainer)
    tokenizer.add_tokens([AddedToken(one, normalized=False) for one in family.added])
    if family.prepends and family.bos is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{family.bos} $A",
            pair=f"{family.bos} $A $B",
            special_tokens=[(family.bos, tokenizer.token_to_id(family.bos))],
        )
    return tokenizer


def _lines(corpus: Sequence[str]) -> Iterator[str]:
    yield from corpus


def folder(
    path: Path,
    family: Family,
    tokenizer: Tokenizer | None = None,
    *,
    config: Mapping[str, Any] | None = None,
) -> Path:
    """Write a model folder, and return it."""
    path.mkdir(parents=True, exist_ok=True)
    (tokenizer or train(family)).save(str(path / "tokenizer.json"))
    named = {"bos_token": family.bos, "eos_token": family.eos, "pad_token": family.pad}
    told = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": family.template,
        **{name: token for name, token in named.items() if token is not None},
        **(config or {}),
    }
    (path / "tokenizer_config.json").write_text(json.dumps(told), encoding="utf-8")
    return path
