"""A model's folder that is made locally, and conversations in its tokens: nothing is downloaded.

The tokenizer is a byte-level BPE with the pre-tokenization rule of large models, trained on the
sources of Python's standard library. It is trained once and kept in a temporary folder. The two
chat templates are written like those of two well-known model families. Conversations have a given
length in tokens, and no two share a message.
"""

import json
import os
import random
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

#: Requested vocabulary size; the actual size depends on the text.
VOCABULARY = 128_000
#: Characters of text to train on: more give more tokens, but take longer.
_TRAINING_CHARACTERS = 24 << 20
_SPECIAL = (
    *("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>"),
    *("<|eot_id|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"),
)
#: Contractions, words with a preceding character, up to three digits, symbols, breaks, spaces.
_SPLIT = (
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
#: Fewest tokens of a message, and about the most messages of a long conversation.
_MIN_MESSAGE_TOKENS, _MAX_MESSAGES = 400, 64
#: Tokens of a turn: an answer and the next question.
ANSWER_TOKENS, QUESTION_TOKENS = 200, 100
MODEL = "model"
Message = dict[str, str]


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
            pre_tokenizers.Split(Regex(_SPLIT), "isolated"),
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
        if length > _TRAINING_CHARACTERS:
            break
    tokenizer.train_from_iterator(chosen, trainer)
    return tokenizer


class Texts:
    """Makes conversations from excerpts of the standard library's sources.

    They repeat words as texts do, but never a whole message. The same seed gives the same ones.
    """

    def __init__(self, seed: int, count: Callable[[str], int]) -> None:
        """Start from a seed; `count` returns the number of tokens of a text."""
        self._chance = random.Random(seed)
        self._lines = [line for text in library() for line in text.splitlines(keepends=True)]
        sample = "".join(self._lines[:20_000])
        self._token = len(sample) / count(sample)
        """Characters per token."""

    def conversation(self, tokens: int) -> list[Message]:
        """Return a conversation of about `tokens` tokens that ends with a user message."""
        each = max(_MIN_MESSAGE_TOKENS, tokens // _MAX_MESSAGES)
        messages = [{"role": "system", "content": self._text(min(each, tokens // 2))}]
        left = tokens - min(each, tokens // 2)
        rounds = max(left // each, 1) | 1  # odd: the user begins and ends
        for number in range(rounds):
            role = "assistant" if number % 2 else "user"
            messages.append({"role": role, "content": self._text(left // rounds)})
        return messages

    def turn(self, messages: list[Message]) -> list[Message]:
        """Return the conversation with another answer and question."""
        answer = {"role": "assistant", "content": self._text(ANSWER_TOKENS)}
        return [*messages, answer, {"role": "user", "content": self._text(QUESTION_TOKENS)}]

    def _text(self, tokens: int) -> str:
        """Return text of about `tokens` tokens that begins with a random number."""
        length = int(tokens * self._token)
        pieces, written = [f"{self._chance.getrandbits(48):x} "], 0
        while written < length:
            start = self._chance.randrange(len(self._lines))
            piece = "".join(self._lines[start : start + 12])
            pieces.append(piece)
            written += len(piece)
        return "".join(pieces)[: max(length, 1)]


def body(messages: list[Message], model: str = MODEL) -> bytes:
    """Return a chat request's body as a client writes it."""
    request = {"model": model, "messages": messages, "temperature": 0.7, "max_tokens": 256}
    return json.dumps(request, ensure_ascii=False, separators=(",", ":")).encode()
