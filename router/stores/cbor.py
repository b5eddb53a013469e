"""CBOR, as RFC 8949 writes it in its core deterministic form: of numbers and texts, and of many
token ids at once, which one by one would take tens of milliseconds a prompt."""

from functools import cache
from typing import TYPE_CHECKING

# Loading numpy takes 17 MB, and only who has a memory needs it.
if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: Major types.
NUMBER, TEXT, ARRAY = 0, 3, 4


def head(kind: int, number: int) -> bytes:
    """Write a type and a number of up to 64 bits, in as few bytes as can be. Raises ValueError."""
    if number < 24:
        return bytes([kind << 5 | number])
    for place, width in enumerate((1, 2, 4, 8)):
        if number < 1 << 8 * width:
            return bytes([kind << 5 | 24 + place]) + number.to_bytes(width, "big")
    raise ValueError("a number of more than 64 bits")


def text(value: str) -> bytes:
    """Write a text."""
    return head(TEXT, len(value.encode())) + value.encode()


def array(ids: bytes) -> bytes:
    """Write an array of numbers, 32 bits each in the machine's order."""
    import numpy as np  # noqa: PLC0415

    words = np.frombuffer(ids, np.uint32)
    wide = np.empty((len(words), 5), np.uint8)
    wide[:, 1:] = words.astype(">u4").view(np.uint8).reshape(-1, 4)
    # Which of four widths, by how many of these bounds are reached; the first byte says so, or is
    # the number itself.
    width = np.zeros(len(words), np.uint8)
    for bound in _BOUNDS:
        width += words >= bound
    wide[:, 0] = words
    np.copyto(wide[:, 0], width + 0x17, where=width > 0)
    return head(ARRAY, len(words)) + wide[_written()[width]].tobytes()


#: Numbers from which on more bytes are needed.
_BOUNDS = (24, 1 << 8, 1 << 16)


@cache
def _written() -> "NDArray[np.bool_]":
    """Which of five bytes are written, for each of the widths."""
    import numpy as np  # noqa: PLC0415

    return np.array([[1, 0, 0, 0, 0], [1, 0, 0, 0, 1], [1, 0, 0, 1, 1], [1, 1, 1, 1, 1]], bool)
