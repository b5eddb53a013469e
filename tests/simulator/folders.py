"""Small model folders, quick to make: a byte-level BPE with a few hundred tokens, and a
template."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|begin|>", "<|im_start|>", "<|im_end|>"]
_TEXT = "Tell me a story about the sea, the wind and the boats that come home. fedaboki gisota "


def make_folder(path: Path, template: str | None = CHATML, **config: Any) -> Path:
    """Write a model folder such as an engine would serve."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, show_progress=False, special_tokens=SPECIAL, initial_alphabet=alphabet
    )
    tokenizer.train_from_iterator([_TEXT * 20], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|begin|> $A", special_tokens=[("<|begin|>", 0)]
    )
    path.mkdir(exist_ok=True)
    tokenizer.save(str(path / "tokenizer.json"))
    given = {"bos_token": "<|begin|>", "eos_token": {"content": "<|im_end|>"}, **config}
    if template is not None:
        given["chat_template"] = template
    (path / "tokenizer_config.json").write_text(json.dumps(given))
    return path
