"""Text to token ids: with fastokens if it agrees with tokenizers, else with tokenizers.

`tokenizers` is what engines use, so it is the reference. `fastokens` reads the same
`tokenizer.json` and is ten times as fast, but younger; it is used only if both agree on samples of
everything known to differ.

Tokens that a model's configuration adds to its tokenizer, or whose flags it changes, are added as
in Transformers (tokenization_utils_tokenizers.py, `TokenizersBackend.__init__`): first those of
`added_tokens_decoder`, then the special tokens that are added tokens neither there nor in the
tokenizer itself.
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import fastokens  # type: ignore[import-untyped]
from tokenizers import AddedToken
from tokenizers import Tokenizer as HuggingFaceTokenizer

from router.rendering.folder import SPECIAL, TOKENIZER, UNNAMED, BadFolder, read_folder
from router.rendering.messages import Json
from router.rendering.probes import SAMPLES

#: Setting that splits special tokens written by users into ordinary tokens.
SPLIT = "split_special_tokens"
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def add_tokens(tokenizer: HuggingFaceTokenizer, config: Mapping[str, Any]) -> bool:
    """Add the configuration's tokens; return whether that changed anything. Raises BadFolder."""
    before = tokenizer.to_str() if config else ""
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    added = _added_tokens(config)
    known.update(token.content for token in added)
    for special in (*map(config.get, SPECIAL), *_more(config)):
        token = _special(special)
        if token is not None and token.content not in known:
            added.append(token)
            known.add(token.content)
    if not added:
        return False
    tokenizer.add_tokens(added)
    return tokenizer.to_str() != before


def settings_of_ids(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a configuration that affects a tokenizer's ids."""
    names = ("added_tokens_decoder", *SPECIAL, *UNNAMED, SPLIT)
    return {name: config[name] for name in names if name in config}


def _added_tokens(config: Mapping[str, Any]) -> list[AddedToken]:
    given = config.get("added_tokens_decoder") or {}
    try:
        return [_token(given[place]) for place in sorted(given, key=int)]
    except (AttributeError, KeyError, TypeError, ValueError):
        raise BadFolder("added_tokens_decoder of tokenizer_config.json is not valid") from None


def _token(given: Json) -> AddedToken:
    flags = {name: bool(given[name]) for name in _FLAGS if name in given}
    return AddedToken(given["content"], **flags)


def _special(given: Json) -> AddedToken | None:
    if isinstance(given, dict) and isinstance(given.get("content"), str):
        return _token({**given, "special": True})
    return AddedToken(given, special=True) if isinstance(given, str) else None


def _more(config: Mapping[str, Any]) -> list[Json]:
    """Special tokens without a name of their own; the second is the older spelling."""
    tokens = next((config[name] for name in UNNAMED if config.get(name)), None)
    return tokens if isinstance(tokens, list) else []


#: Bytes of text and ids that fastokens may cache for pieces between special tokens.
SEGMENT_CACHE_BYTES = 64 << 20
#: Most added tokens of a model that are tested.
MAX_ADDED_TOKENS_TESTED = 256


class TextTokenizer(Protocol):
    """Turns text into ids. May be used by several threads at once."""

    name: str
    short: int
    """Size of a request, in bytes, that takes hardly a millisecond if nothing of it is cached."""

    def encode(self, text: str, *, special: bool) -> bytes:
        """Return ids as 32-bit integers, little-endian; with `special`, BOS and the like."""


class ReferenceTokenizer:
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
        encodings = self._tokenizer.encode_batch_fast([text], add_special_tokens=special)
        return array("I", encodings[0].ids).tobytes()


class FastTokenizer:
    """fastokens, with a cache for the pieces between special tokens."""

    name = "fastokens"
    short = 32 << 10

    def __init__(self, tokenizer: fastokens.Tokenizer, memory: int = SEGMENT_CACHE_BYTES) -> None:
        self._tokenizer = tokenizer
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.enable_segment_cache(memory)

    def encode(self, text: str, *, special: bool) -> bytes:
        """Return the ids of `text`."""
        encodings: list[bytes] = self._tokenizer.encode_batch_flat(
            [text], add_special_tokens=special
        )
        return encodings[0]


def load(
    path: Path, memory: int = SEGMENT_CACHE_BYTES, *, text: str | None = None
) -> tuple[TextTokenizer, str]:
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
    changed = text is not None or add_tokens(tokenizer, config)
    reference = ReferenceTokenizer(tokenizer)
    if config.get(SPLIT):
        tokenizer.encode_special_tokens = True
        return reference, "special tokens are split, which fastokens does not do"
    try:
        if changed:
            other = fastokens.Tokenizer.from_json_str(tokenizer.to_str())
        else:
            other = fastokens.Tokenizer.from_file(str(file))
        fast = FastTokenizer(other, memory)
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
    for token in islice(added, MAX_ADDED_TOKENS_TESTED):
        mark = token.content
        yield f"a {mark} b{mark}{mark}\n{mark}  \t{mark.upper()} x{mark}y {mark[:-1]}"


def _first_difference(
    fast: TextTokenizer, reference: TextTokenizer, samples: Iterable[str]
) -> str | None:
    """Return the first sample for which the ids differ; each runs twice, to test the cache."""
    for sample in samples:
        for special in (False, True, False):
            if fast.encode(sample, special=special) != reference.encode(sample, special=special):
                return sample
    return None
