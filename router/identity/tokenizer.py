"""Text → token ids, by libraries: fastokens where it says the same as tokenizers, else tokenizers.

`tokenizers` is what engines use, and so the reference. `fastokens` reads the same `tokenizer.json`
and is ten times as fast, but is younger; it is taken only where both agree on a sample of
everything that has been known to differ.
"""

from array import array
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Protocol

import fastokens  # type: ignore[import-untyped]
from tokenizers import Tokenizer as HuggingFaceTokenizer

from router.identity.added import SPLIT, add
from router.identity.folder import TOKENIZER, BadFolder, read_folder
from router.identity.samples import SAMPLES

#: Bytes of text and ids that fastokens may remember between special tokens.
SEGMENTS = 64 << 20
#: Added tokens of a model that are tried.
ADDED = 256


class Tokenizer(Protocol):
    """Turns text into ids. May be used by several threads at once."""

    name: str
    short: int
    """Bytes of a request that takes hardly a millisecond when all of it is new."""

    def encode(self, text: str, *, special: bool) -> bytes:
        """Return ids as 32-bit integers, lowest byte first; with `special`, BOS and the like."""


class Reference:
    """Hugging Face's own."""

    name = "tokenizers"
    short = 1 << 10

    def __init__(self, tokenizer: HuggingFaceTokenizer) -> None:
        self._tokenizer = tokenizer
        tokenizer.no_truncation()
        tokenizer.no_padding()

    def encode(self, text: str, *, special: bool) -> bytes:
        """Return the ids of `text`."""
        # Of its ways to tokenize, only those for batches let go of the interpreter meanwhile.
        found = self._tokenizer.encode_batch_fast([text], add_special_tokens=special)
        return array("I", found[0].ids).tobytes()


class Fast:
    """fastokens, with a memory for the pieces between special tokens."""

    name = "fastokens"
    short = 32 << 10

    def __init__(self, tokenizer: fastokens.Tokenizer, memory: int = SEGMENTS) -> None:
        self._tokenizer = tokenizer
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.enable_segment_cache(memory)

    def encode(self, text: str, *, special: bool) -> bytes:
        """Return the ids of `text`."""
        found: list[bytes] = self._tokenizer.encode_batch_flat([text], add_special_tokens=special)
        return found[0]


def load(path: Path, memory: int = SEGMENTS, *, text: str | None = None) -> tuple[Tokenizer, str]:
    """Return the faster tokenizer that can be trusted, and why it is the one. Raises BadFolder.

    `text` stands for the `tokenizer.json`, tokens of the configuration included.
    """
    file, config = path / TOKENIZER, read_folder(path).config
    try:
        if text is None:
            tokenizer = HuggingFaceTokenizer.from_file(str(file))
        else:
            tokenizer = HuggingFaceTokenizer.from_str(text)
    except Exception as error:  # noqa: BLE001 - that library raises plain Exceptions
        raise BadFolder(f"{file} cannot be read: {error}") from None
    changed = text is not None or add(tokenizer, config)
    reference = Reference(tokenizer)
    if config.get(SPLIT):
        tokenizer.encode_special_tokens = True
        return reference, "special tokens are split, which fastokens does not do"
    try:
        if changed:
            other = fastokens.Tokenizer.from_json_str(tokenizer.to_str())
        else:
            other = fastokens.Tokenizer.from_file(str(file))
        fast = Fast(other, memory)
        sample = _first_difference(fast, reference, _samples(tokenizer))
    except Exception as error:  # noqa: BLE001 - so does this one
        return reference, f"fastokens does not take it ({error})"
    if sample is not None:
        return reference, f"fastokens gives other ids, first for {sample[:40]!r}"
    return fast, "fastokens and tokenizers agree"


def _samples(tokenizer: HuggingFaceTokenizer) -> Iterator[str]:
    """What has been known to differ, and the tokenizer's own special tokens in odd places."""
    yield from SAMPLES
    yield "".join(SAMPLES)
    added = tokenizer.get_added_tokens_decoder().values()
    for token in islice(added, ADDED):
        mark = token.content
        yield f"a {mark} b{mark}{mark}\n{mark}  \t{mark.upper()} x{mark}y {mark[:-1]}"


def _first_difference(one: Tokenizer, other: Tokenizer, samples: Iterable[str]) -> str | None:
    """Return the first sample of which they make different ids; each twice, for the memory."""
    for sample in samples:
        for special in (False, True, False):
            if one.encode(sample, special=special) != other.encode(sample, special=special):
                return sample
    return None
