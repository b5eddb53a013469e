"""Text to token ids: with fastokens if it agrees with tokenizers, else with tokenizers.

`tokenizers` is what engines use, so it is the reference. `fastokens` reads the same
`tokenizer.json` and is ten times as fast, but younger; it is used only if both agree on samples of
everything known to differ.
"""

from array import array
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Protocol

import fastokens  # type: ignore[import-untyped]
from tokenizers import Tokenizer as HuggingFaceTokenizer

from router.rendering.added import SPLIT, add
from router.rendering.folder import TOKENIZER, BadFolder, read_folder
from router.rendering.samples import SAMPLES

#: Bytes of text and ids that fastokens may cache for pieces between special tokens.
SEGMENTS = 64 << 20
#: Most added tokens of a model that are tested.
ADDED = 256


class Tokenizer(Protocol):
    """Turns text into ids. May be used by several threads at once."""

    name: str
    short: int
    """Size of a request, in bytes, that takes hardly a millisecond if nothing of it is cached."""

    def encode(self, text: str, *, special: bool) -> bytes:
        """Return ids as 32-bit integers, little-endian; with `special`, BOS and the like."""


class Reference:
    """Hugging Face's `tokenizers`."""

    name = "tokenizers"
    short = 1 << 10

    def __init__(self, tokenizer: HuggingFaceTokenizer) -> None:
        self._tokenizer = tokenizer
        tokenizer.no_truncation()
        tokenizer.no_padding()

    def encode(self, text: str, *, special: bool) -> bytes:
        """Return the ids of `text`."""
        # Only its batch functions release the GIL.
        found = self._tokenizer.encode_batch_fast([text], add_special_tokens=special)
        return array("I", found[0].ids).tobytes()


class Fast:
    """fastokens, with a cache for the pieces between special tokens."""

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
    """Return the fastest tokenizer that can be trusted, and why it was chosen. Raises BadFolder.

    `text` replaces the `tokenizer.json`, and includes the tokens of the configuration.
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
    except Exception as error:  # noqa: BLE001 - so does fastokens
        return reference, f"fastokens does not take it ({error})"
    if sample is not None:
        return reference, f"fastokens gives other ids, first for {sample[:40]!r}"
    return fast, "fastokens and tokenizers agree"


def _samples(tokenizer: HuggingFaceTokenizer) -> Iterator[str]:
    """Yield samples known to differ, and the tokenizer's own special tokens in odd places."""
    yield from SAMPLES
    yield "".join(SAMPLES)
    added = tokenizer.get_added_tokens_decoder().values()
    for token in islice(added, ADDED):
        mark = token.content
        yield f"a {mark} b{mark}{mark}\n{mark}  \t{mark.upper()} x{mark}y {mark[:-1]}"


def _first_difference(one: Tokenizer, other: Tokenizer, samples: Iterable[str]) -> str | None:
    """Return the first sample for which the ids differ; each runs twice, to test the cache."""
    for sample in samples:
        for special in (False, True, False):
            if one.encode(sample, special=special) != other.encode(sample, special=special):
                return sample
    return None
