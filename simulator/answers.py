"""What a simulated model says: words of four characters, the same for the same prompt.

Every word is one token (see `tokens`), so an answer of n tokens is 4n characters, and comes back
in the next turn as the ids it was generated with. Answers are stretches of one long ring of words;
where a stretch begins, and how long an answer is when nobody says, follow from the prompt.
"""

from __future__ import annotations

import zlib
from array import array

from simulator.tokens import tokenize

_SYLLABLES = ("bo", "da", "fe", "gi", "ka", "lo", "mu", "ne", "pi", "ra", "so", "ta", "ve", "wi")
_RING_WORDS = 4096
#: Answer lengths, in tokens, when a request sets none.
_SHORTEST, _LONGEST = 32, 256


def _ring() -> str:
    """All the words in a row: ASCII, four characters each, none beginning with a space.

    A client that strips an answer's ends must not shift the pieces it is cut into.
    """
    words = [first + second for first in _SYLLABLES for second in _SYLLABLES]
    words += [f"{syllable}{end} " for syllable in _SYLLABLES for end in "nrst,.nrst"]
    state, ring = 1, []
    for _ in range(_RING_WORDS):
        state = (state * 1_103_515_245 + 12_345) & 0x7FFF_FFFF  # rand() of ANSI C
        ring.append(words[(state >> 16) % len(words)])
    return "".join(ring)


_TEXT = _ring()
_IDS = tokenize(_TEXT)


class Answer:
    """The answer to one prompt: `length` tokens and their text."""

    __slots__ = ("_start", "ids", "length")

    def __init__(self, prompt: array[int], length: int, variant: int = 0) -> None:
        self.length = length
        self._start = (seed(prompt) + 97 * variant) % _RING_WORDS
        rounds = (self._start + length) // _RING_WORDS
        ring = _IDS if not rounds else _IDS * (rounds + 1)
        self.ids = ring[self._start : self._start + length]

    def words(self, first: int, stop: int) -> list[bytes]:
        """The tokens `first` to `stop` as text, one item of four ASCII bytes each."""
        start = self._start
        return [WORDS[(start + index) % _RING_WORDS] for index in range(first, stop)]

    def text(self) -> str:
        """The whole answer."""
        rounds = (self._start + self.length) // _RING_WORDS
        return (_TEXT * (rounds + 1))[self._start * 4 : (self._start + self.length) * 4]


WORDS = [_TEXT[at : at + 4].encode() for at in range(0, len(_TEXT), 4)]


def seed(prompt: array[int]) -> int:
    """A number that follows from the prompt alone."""
    return zlib.crc32(prompt.tobytes())


def natural_length(prompt: array[int]) -> int:
    """How many tokens the model says of its own accord."""
    return _SHORTEST + seed(prompt) % (_LONGEST - _SHORTEST + 1)
