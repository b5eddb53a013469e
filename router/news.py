"""What the processes of one router tell each other of the requests that they send. Pure.

Of a prompt no more than its sizes and the keys of its blocks, which are hashes.
"""

from collections.abc import Sequence

import msgspec
from msgspec import Struct


class Booked(Struct, array_like=True, tag=1, gc=False):
    """A request is being sent to a worker."""

    number: int
    """Of all that this process has sent."""
    at: float
    """Seconds of the machine's monotonic clock, which all processes read alike."""
    pool: str
    worker: str
    tokens: int
    answer_tokens: int
    stream: bool
    prefill_s: float
    held_tokens: int
    l1: int
    """Tokens to be loaded from there; so the next."""
    l2: int
    unit_tokens: float
    keys: Sequence[int]
    """Over `strategies.blocks.TEXT_ENDS`; empty where nobody wants them."""


class Began(Struct, array_like=True, tag=2, gc=False):
    """The first byte of its answer is there, and tells that the prompt is computed."""

    number: int
    at: float


class Ended(Struct, array_like=True, tag=3, gc=False):
    """It is over, well or not."""

    number: int
    at: float
    ok: bool
    began: bool
    cached_tokens: int | None
    answer_tokens: int | None


class Anew(Struct, array_like=True, tag=4, gc=False):
    """Nothing told before counts; what is still open follows."""

    asks: bool
    """The others are to tell theirs too."""


News = Booked | Began | Ended | Anew


class Letter(Struct, array_like=True, gc=False):
    """Some of it, in the order in which it happened."""

    place: int
    """Of the process that tells, from 0."""
    pid: int
    """Its id: another one may come to its place."""
    news: Sequence[News]


#: Bytes of a piece of news, at most, but for the names and keys in it; and of a key.
_LARGE, _SMALL, _KEY = 128, 48, 9

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Letter).decode


def size(news: News) -> int:
    """Bytes that it takes, at most: no name has more than four a letter."""
    if isinstance(news, Booked):
        return _LARGE + 4 * (len(news.pool) + len(news.worker)) + _KEY * len(news.keys)
    return _SMALL


def letters(place: int, pid: int, news: Sequence[News], most: int) -> list[bytes]:
    """Write it all, closing a letter when it has `most` bytes."""
    written, some, total = [], list[News](), 0
    for one in news:
        some.append(one)
        total += size(one)
        if total >= most:
            written.append(encode(Letter(place, pid, some)))
            some, total = [], 0
    if some:
        written.append(encode(Letter(place, pid, some)))
    return written
