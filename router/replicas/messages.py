"""The messages that a router's processes send each other about their requests. Pure.

Of a prompt they contain only its sizes and the keys of its blocks, which are hashes.
"""

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from router.responses.messages import OwnerQuery, ResponseOwner


class Booked(Struct, array_like=True, tag=1, gc=False):
    """A request is being sent to a worker."""

    number: int
    """Number of the request within the process that sends it."""
    at: float
    """Seconds of the machine's monotonic clock, which is the same for all processes."""
    pool: str
    worker: str
    tokens: int
    answer_tokens: int
    stream: bool
    prefill_s: float
    held_tokens: int
    l1: int
    """Tokens to be loaded from the L1 tier."""
    l2: int
    """Tokens to be loaded from the L2 tier."""
    unit_tokens: float
    keys: Sequence[int]
    """Keys of blocks that end at `TEXT_ENDS` (`strategies/prefix/block_keys.py`); empty if nobody
    wants them."""
    resumed: bool = False
    """It was preempted before: what its worker holds of it was estimated."""
    since: float | None = None
    """When it came, if it may be preempted."""


class Began(Struct, array_like=True, tag=2, gc=False):
    """The first byte of a request's answer has arrived, so its prompt is computed."""

    number: int
    at: float


class Ended(Struct, array_like=True, tag=3, gc=False):
    """A request has ended, successfully or not."""

    number: int
    at: float
    ok: bool
    began: bool
    cached_tokens: int | None
    answer_tokens: int | None
    kept_tokens: int | None = None
    """If it was preempted: tokens of its prompt that the worker holds by now, as estimated."""
    prompt_tokens: int | None = None
    """The length of its prompt, as the worker reported it."""


class Resync(Struct, array_like=True, tag=4, gc=False):
    """Start over: forget everything told before; what is still in flight follows."""

    asks: bool
    """The receiver is to start over as well."""


class GiveWay(Struct, array_like=True, tag=5, gc=False):
    """A request of the receiver gives way to one of the sender, which was told before."""

    number: int
    """Its number within the process that sent it, the receiver."""
    first: int
    """The number of the other one within the process that sends that."""


News = Booked | Began | Ended | Resync | GiveWay | ResponseOwner | OwnerQuery


class Batch(Struct, array_like=True, gc=False):
    """Several pieces of news, in the order in which they happened."""

    place: int
    """Place of the sending process, counted from 0."""
    pid: int
    """Its process id, because a restarted process has the same place."""
    news: Sequence[News]


#: Most bytes of `Booked` without its names and keys, of any other piece of news, and of a key.
_LARGE, _SMALL, _KEY = 128, 64, 9

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Batch).decode


def size(news: News) -> int:
    """Return an upper bound of its encoded bytes; a character takes four bytes at most."""
    if isinstance(news, Booked):
        return _LARGE + 4 * (len(news.pool) + len(news.worker)) + _KEY * len(news.keys)
    if isinstance(news, ResponseOwner):
        return _LARGE + 4 * (len(news.worker) + len(news.tenant))
    return _SMALL


def letters(place: int, pid: int, news: Sequence[News], most: int) -> list[bytes]:
    """Encode all news as letters, starting a new one as soon as one has `most` bytes."""
    written, some, total = [], list[News](), 0
    for item in news:
        some.append(item)
        total += size(item)
        if total >= most:
            written.append(encode(Batch(place, pid, some)))
            some, total = [], 0
    if some:
        written.append(encode(Batch(place, pid, some)))
    return written
