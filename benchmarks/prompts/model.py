"""A model folder that is generated locally: nothing is downloaded.

The tokenizer is a byte-level BPE with the pre-tokenization rule of large models, trained on the
sources of Python's standard library. It is trained once and kept in a temporary folder. The two
chat templates are written like those of two well-known model families.
"""

import json
import os
import random
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

#: Requested vocabulary size; the actual size depends on the text.
VOCABULARY = 128_000
#: Characters of text to train on: more give more tokens, but take longer.
_TRAINED_ON = 24 << 20
_SPECIAL = (
    *("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
    *("<|eot_id|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"),
)
#: Contractions, words with a preceding character, up to three digits, symbols, breaks, spaces.
_CUT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CHATML = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- '# Tools\\n' }}
    {%- for tool in tools %}
        {{- '\\n' + (tool | tojson) }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' + message.content }}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n' + (call.function | tojson) + '\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
_HEADERS = """\
{{- bos_token }}
{%- for message in messages %}
    {%- if message.tool_calls %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
        {{- (message.tool_calls[0].function | tojson) + '<|eot_id|>' }}
    {%- else %}
        {%- set role = 'ipython' if message.role == 'tool' else message.role %}
        {{- '<|start_header_id|>' + role + '<|end_header_id|>\\n\\n' }}
        {{- (message.content | trim) + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
TEMPLATES = {"chatml": _CHATML, "headers": _HEADERS}


def model_folder(template: str) -> Path:
    """Return a model folder with one of `TEMPLATES`; it is made if it does not exist."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    base = Path(tempfile.gettempdir(), f"warmroute-prompts-{os.getuid()}-{python}")
    if not base.is_dir():
        _make(base)
    return base / template


@cache
def library() -> Sequence[str]:
    """Return the sources of the standard library, file by file."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(file for file in root.rglob("*.py") if "site-packages" not in file.parts)
    return [file.read_text(encoding="utf-8", errors="replace") for file in files]


def _make(base: Path) -> None:
    """Make the folders elsewhere and move them to `base`, so that they are never incomplete."""
    folder = Path(tempfile.mkdtemp(prefix="warmroute-"))
    tokenizer = _train()
    for name, text in TEMPLATES.items():
        model = folder / name
        model.mkdir()
        tokenizer.save(str(model / "tokenizer.json"))
        config = {"chat_template": text, "bos_token": _SPECIAL[0], "eos_token": _SPECIAL[1]}
        (model / "tokenizer_config.json").write_text(json.dumps(config))
        (model / "config.json").write_text('{"model_type": "llama"}')
    try:
        folder.rename(base)
    except OSError:  # another process was faster
        shutil.rmtree(folder)


def _train() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_CUT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(_SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = list(library())
    random.Random(1).shuffle(texts)
    chosen, length = [], 0
    for text in texts:
        chosen.append(text)
        length += len(text)
        if length > _TRAINED_ON:
            break
    tokenizer.train_from_iterator(chosen, trainer)
    return tokenizer
