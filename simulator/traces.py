"""Traces in Mooncake's format, and synthetic prompt text to match their block hashes.

Each line is a request: its arrival time, the lengths of its prompt and answer, and one id for
every block of 512 tokens of the prompt. Equal ids mean equal text from the start of the prompt on.
"""

import hashlib
import io
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import groupby, pairwise
from pathlib import Path
from statistics import median
from typing import Annotated, BinaryIO

import msgspec
import zstandard

BLOCK_TOKENS = 512
CHARS_PER_TOKEN = 4

_MAX_LINE_BYTES = 16 * 1024 * 1024
_EXPECTED = '{"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [id, ...]}'

# Common words of three letters on average: with the space after it, a word is four characters
# and, for most tokenizers, one token. There are 256 of them, one for each value of a byte.
_VOCABULARY = """
    a i an as at be by do go he if in is it me my no of on or so to up us we the and for are but
    not you all any can had her was one our out day get has him his how man new now old see two
    way who boy did its let put say she too use air art ask bad bag bed big bit box bus buy car
    cat cup cut dog dry due ear eat egg end eye far few fit fly fun gas gem gum guy hit hot ice
    job key kid law lay led leg lie lot low map men met mix net nor oil pay per pop ran raw red
    run sat sea set sew shy sir sit six sky son sun tax tea ten tie tip top toy try van via war
    wet win yes yet ago aid aim arm bar bay cap cow dad die dot fan fee fix hat hill idea into
    item join just keep kind kin know lack land last late lead left less life like line list
    live long look lose love made main make many mean mind more most move much must name near
    need next nice note once only open over own page part past path plan play poor pull push
    rain rate read real rest rich ring rise road rock role room rule safe sail sale same add age
    ant ape awe axe bee cab cob cub dew dim dip fig fog fur hay hen
"""
_WORDS = tuple(_VOCABULARY.split())


def _words(drawn: bytes) -> str:
    return " ".join(map(_WORDS.__getitem__, drawn))


# Drawing eight words at a time makes text eight times as fast. Prompts of 100,000 tokens are built
# between two events of other requests, whose timing this must not disturb.
_PHRASES = tuple(_words(hashlib.shake_128(b"phrase %d" % n).digest(8)) for n in range(256))
_MIN_PHRASE_CHARS = min(map(len, _PHRASES)) + 1
# The first words are drawn one by one, so that texts differ within their first few tokens.
_FIRST_WORDS = 16


class TraceError(ValueError):
    """A trace that cannot be read; the message says where, and what was expected."""


class TraceRequest(msgspec.Struct, frozen=True, gc=False):
    """One request of a trace; its prompt is known only by the ids of its blocks."""

    at_s: float
    input_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...]


class _Line(msgspec.Struct, gc=False):
    timestamp: Annotated[float, msgspec.Meta(ge=0)]
    input_length: Annotated[int, msgspec.Meta(ge=1)]
    output_length: Annotated[int, msgspec.Meta(ge=0)]
    hash_ids: tuple[int, ...]


def read_trace(path: Path) -> Iterator[TraceRequest]:
    """Yield the requests of a `.jsonl` or `.jsonl.zst` file, one line at a time."""
    decode = msgspec.json.Decoder(_Line).decode
    number = 0
    try:
        with opened(path) as file:
            while raw := file.readline(_MAX_LINE_BYTES):
                number += 1
                if raw.strip():
                    yield _request(decode(raw))
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}") from error
    except zstandard.ZstdError as error:
        raise TraceError(f"{path}, after line {number}: expected zstd data: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, TraceError) as error:
        raise TraceError(f"{path}, line {number}: {error}; expected {_EXPECTED}") from error


def spread(requests: Iterable[TraceRequest], seed: int) -> list[TraceRequest]:
    """Spread requests with equal timestamps over the gap to the next timestamp.

    Recorded timestamps are often quantised (Mooncake's to about 3 s). Replayed as they are, they
    make bursts that did not exist. The gap is divided evenly among the n requests, and each is
    placed at random (by `seed`) in its part. A request alone at its timestamp keeps it.
    """
    chance = random.Random(seed)
    ordered = sorted(requests, key=lambda request: request.at_s)
    groups = [(at, list(group)) for at, group in groupby(ordered, key=lambda r: r.at_s)]
    gaps = [later[0] - earlier[0] for earlier, later in pairwise(groups)]
    gaps.append(median(gaps or [0.0]))  # nothing follows the last group: use the median gap
    return [
        msgspec.structs.replace(request, at_s=at + gap * (place + chance.random()) / len(group))
        if len(group) > 1
        else request
        for (at, group), gap in zip(groups, gaps, strict=False)
        for place, request in enumerate(group)
    ]


def prompt_text(request: TraceRequest, chars_per_token: int = CHARS_PER_TOKEN) -> str:
    """Return text of the prompt's length; prompts with equal ids have equal text."""
    blocks = [block_text(hash_id, BLOCK_TOKENS, chars_per_token) for hash_id in request.hash_ids]
    return "".join(blocks)[: request.input_tokens * chars_per_token]


@lru_cache(maxsize=8192)  # 16 MB of text at four characters a token
def block_text(
    hash_id: int, tokens: int = BLOCK_TOKENS, chars_per_token: int = CHARS_PER_TOKEN
) -> str:
    """Return the text of a block, which depends only on its id and size."""
    return filler(f"block {hash_id}", tokens * chars_per_token)


def filler(key: str, chars: int) -> str:
    """Return exactly `chars` characters of short English words chosen by `key`."""
    drawn = hashlib.shake_128(key.encode()).digest(_FIRST_WORDS + chars // _MIN_PHRASE_CHARS + 1)
    phrases = map(_PHRASES.__getitem__, drawn[_FIRST_WORDS:])
    text = " ".join((_words(drawn[:_FIRST_WORDS]), *phrases))
    return text[: chars - 1] + " " if chars else ""  # the space separates it from text that follows


def ideal_hit_rate(requests: Iterable[TraceRequest]) -> float:
    """Return the share of prompt tokens that one cache without eviction would have held."""
    seen: set[int] = set()
    held = total = 0
    for request in requests:
        total += request.input_tokens
        held += min(_held_blocks(request.hash_ids, seen) * BLOCK_TOKENS, request.input_tokens)
        seen.update(request.hash_ids)
    return held / total if total else 0.0


def _held_blocks(hash_ids: Sequence[int], seen: set[int]) -> int:
    for place, hash_id in enumerate(hash_ids):
        if hash_id not in seen:
            return place
    return len(hash_ids)


def _request(line: _Line) -> TraceRequest:
    blocks = -(-line.input_length // BLOCK_TOKENS)
    if len(line.hash_ids) < blocks:
        raise TraceError(
            f"{len(line.hash_ids)} hash_ids for {line.input_length} tokens,"
            f" which are {blocks} blocks of {BLOCK_TOKENS}"
        )
    return TraceRequest(
        line.timestamp / 1000, line.input_length, line.output_length, line.hash_ids[:blocks]
    )


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a `.jsonl` or `.jsonl.zst` file for reading."""
    with path.open("rb") as file:
        if path.suffix == ".zst":
            plain = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
            yield io.BufferedReader(plain)
        else:
            yield file
