"""CBOR in the core deterministic form of RFC 8949: numbers, texts, and arrays of token ids.

Arrays are encoded with numpy, as one by one the ids of a prompt would take tens of milliseconds.
"""

from functools import cache
from typing import TYPE_CHECKING

# Loading numpy takes 17 MB, and only strategies with a memory need it.
if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: CBOR's major types.
NUMBER, TEXT, ARRAY = 0, 3, 4


def head(kind: int, number: int) -> bytes:
    """Encode a type and a number of up to 64 bits in as few bytes as possible. Raises
    ValueError."""
    if number < 24:
        return bytes([kind << 5 | number])
    for place, width in enumerate((1, 2, 4, 8)):
        if number < 1 << 8 * width:
            return bytes([kind << 5 | 24 + place]) + number.to_bytes(width, "big")
    raise ValueError("a number of more than 64 bits")


def text(value: str) -> bytes:
    """Encode a text."""
    return head(TEXT, len(value.encode())) + value.encode()


def array(ids: bytes) -> bytes:
    """Encode an array of numbers, given as 32 bits each in the machine's byte order."""
    import numpy as np  # noqa: PLC0415

    words = np.frombuffer(ids, np.uint32)
    wide = np.empty((len(words), 5), np.uint8)
    wide[:, 1:] = words.astype(">u4").view(np.uint8).reshape(-1, 4)
    # Which of four widths a number has: the count of bounds that it reaches. The first byte gives
    # the width, or is the number itself.
    width = np.zeros(len(words), np.uint8)
    for bound in _BOUNDS:
        width += words >= bound
    wide[:, 0] = words
    np.copyto(wide[:, 0], width + 0x17, where=width > 0)
    return head(ARRAY, len(words)) + wide[_written()[width]].tobytes()


#: Numbers from which more bytes are needed.
_BOUNDS = (24, 1 << 8, 1 << 16)


@cache
def _written() -> "NDArray[np.bool_]":
    """Return which of the five bytes are written, for each width."""
    import numpy as np  # noqa: PLC0415

    return np.array([[1, 0, 0, 0, 0], [1, 0, 0, 0, 1], [1, 0, 0, 1, 1], [1, 1, 1, 1, 1]], bool)
