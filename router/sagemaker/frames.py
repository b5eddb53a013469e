"""The binary frames of `application/vnd.amazon.eventstream`. Pure.

A frame is: its length, the length of its headers, the CRC-32 of those eight bytes, headers,
payload, the CRC-32 of everything before. Numbers are 32 bits, big-endian. A header is: the length
of its name in one byte, the name, 7 for the type string, the length of the value in two bytes, the
value.
"""

from struct import pack
from zlib import crc32

#: The end of a server-sent event (WHATWG HTML section 9.2.5).
_EVENT_END = b"\n\n"
CONTENT_TYPE = b"application/vnd.amazon.eventstream"


def frame(payload: bytes, headers: bytes) -> bytes:
    """Return one frame."""
    start = pack(">II", 16 + len(headers) + len(payload), len(headers))
    message = b"".join((start, pack(">I", crc32(start)), headers, payload))
    return message + pack(">I", crc32(message))


def header(name: bytes, text: bytes) -> bytes:
    """Return one header of a frame."""
    return b"%b%b\x07%b%b" % (bytes((len(name),)), name, pack(">H", len(text)), text)


_PART = (
    header(b":message-type", b"event")
    + header(b":event-type", b"PayloadPart")
    + header(b":content-type", b"application/octet-stream")
)


def parts(data: bytes) -> bytes:
    """Return one frame for each whole server-sent event; anything else becomes a single frame."""
    if data.endswith(_EVENT_END):
        events = data.split(_EVENT_END)[:-1]
        return b"".join([frame(event + _EVENT_END, _PART) for event in events])
    return frame(data, _PART) if data else b""


def exception(kind: str, payload: bytes) -> bytes:
    """Return the frame that ends a stream with an exception."""
    headers = (
        header(b":message-type", b"exception")
        + header(b":exception-type", kind.encode())
        + header(b":content-type", b"application/json")
    )
    return frame(payload, headers)
