"""Undoes the content coding of a body (RFC 9110 section 8.4): no worker does, nor could we read it.

What is decoded is bounded on the way, so a small body that unpacks to a large one is refused when
it passes the limit, and never held.
"""

import asyncio
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from router.api.errors import BodyTooLarge, WrongCoding

#: Bytes that are decoded at once. A decoder holds up to as many, and zstd its window.
_PIECE_BYTES: Final = 1 << 20
#: Bytes that zlib is given at once: it copies what it has not taken yet.
_INPUT_BYTES: Final = 64 << 10
#: Largest window of zstd (RFC 9659 section 3).
_MAX_ZSTD_WINDOW: Final = 8 << 20
#: Most members of one gzip body: each costs some microseconds, however short it is.
MAX_GZIP_MEMBERS: Final = 1024
#: Most codings of one body, one around the other.
MAX_CODINGS: Final = 4
#: A coded body up to this size is decoded on the event loop, up to so many bytes.
_MAX_INLINE_BYTES: Final = 4 << 10
_MAX_INLINE_DECODED_BYTES: Final = 256 << 10
#: A last frame of zstd, and its content: decoders do not say whether the frame before has ended.
_ZSTD_END: Final = b"(\xb5/\xfd$\x01\t\x00\x00\x042g\x9d\xd6"
_ZSTD_MARK: Final = b"\x04"


def listed(values: Sequence[bytes]) -> tuple[bytes, ...]:
    """Return the codings that the `Content-Encoding` fields list, in the order of their use."""
    names = [name.strip(b" \t").lower() for value in values for name in value.split(b",")]
    return tuple([name for name in names if name not in {b"", b"identity"}])


async def decoded(body: bytes, codings: Sequence[bytes], limit: int) -> bytes:
    """Return a body as it was before its codings; `limit` bounds it and every step to it.

    Raises BodyTooLarge, WrongCoding.
    """
    if not body:
        return body
    if len(body) <= _MAX_INLINE_BYTES:
        with suppress(BodyTooLarge):
            return undo(body, codings, min(limit, _MAX_INLINE_DECODED_BYTES))
    return await asyncio.to_thread(undo, body, codings, limit)


def undo(body: bytes, codings: Sequence[bytes], limit: int) -> bytes:
    """Do what `decoded` does, at once."""
    if len(codings) > MAX_CODINGS or not _DECODERS.keys() >= set(codings):
        named = b", ".join(codings).decode("latin-1")
        raise WrongCoding(
            f"The request body's Content-Encoding is {named[:200]!r}", ACCEPTED_CODINGS
        )
    for name in reversed(codings):
        try:
            body = _whole(_DECODERS[name](body), limit)
        except ValueError as error:
            message = f"The request body is not the {name.decode()} that its Content-Encoding says"
            raise WrongCoding(f"{message} ({error})", ACCEPTED_CODINGS) from None
    return body


def _whole(pieces: Iterator[bytes], limit: int) -> bytes:
    kept, size = [], 0
    for piece in pieces:
        size += len(piece)
        if size > limit:
            raise BodyTooLarge(limit, "The request body, decoded,")
        kept.append(piece)
    return b"".join(kept)


def _gzip(body: bytes) -> Iterator[bytes]:
    """RFC 1952; its section 2.2 allows several members."""
    return _inflated(body, zlib.MAX_WBITS | 16, MAX_GZIP_MEMBERS)


def _deflate(body: bytes) -> Iterator[bytes]:
    """Zlib's format (RFC 9110 section 8.4.1.2), or the bare stream that many send in its place."""
    bare = body[0] & 15 != zlib.DEFLATED or int.from_bytes(body[:2], "big") % 31
    return _inflated(body, -zlib.MAX_WBITS if bare else zlib.MAX_WBITS, 1)


def _inflated(body: bytes, format_: int, members: int) -> Iterator[bytes]:
    """Decode with zlib. Raises ValueError."""
    engine, count = zlib.decompressobj(format_), 1
    try:
        for start in range(0, len(body), _INPUT_BYTES):
            rest = body[start : start + _INPUT_BYTES]
            while rest:
                if engine.eof:
                    count += 1
                    if count > members:
                        raise ValueError(
                            "something follows its end"
                            if members == 1
                            else f"it has more than {members} members: send it as one"
                        )
                    engine = zlib.decompressobj(format_)
                yield engine.decompress(rest, _PIECE_BYTES)
                rest = engine.unconsumed_tail or engine.unused_data
        while not engine.eof and (piece := engine.decompress(b"", _PIECE_BYTES)):
            yield piece
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if not engine.eof:
        raise ValueError("it ends too early")


def _zstd(body: bytes) -> Iterator[bytes]:
    """Decode frames of zstd, one or several (RFC 8878 section 3). Raises ValueError."""
    from zstandard import ZstdDecompressor, ZstdError  # noqa: PLC0415 - 2 MB, for who needs it

    engine = ZstdDecompressor(max_window_size=_MAX_ZSTD_WINDOW)
    reader = engine.stream_reader(body + _ZSTD_END, read_across_frames=True)
    last = b""
    try:
        while piece := reader.read(_PIECE_BYTES):
            whole = last + piece
            yield whole[:-1]
            last = whole[-1:]
    except ZstdError as error:
        message = str(error).removeprefix("zstd decompress error: ")
        if "memory" in message:
            message += f": windows of up to {_MAX_ZSTD_WINDOW} bytes are taken"
        raise ValueError(message) from None
    if last != _ZSTD_MARK:
        raise ValueError("it ends too early")


_DECODERS: Final[dict[bytes, Callable[[bytes], Iterator[bytes]]]] = {
    b"gzip": _gzip,
    b"x-gzip": _gzip,  # the same (RFC 9110 section 8.4.1.3)
    b"deflate": _deflate,
    b"zstd": _zstd,
}
#: What clients are told to send.
ACCEPTED_CODINGS: Final = "gzip, deflate, zstd"
