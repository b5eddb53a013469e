"""The text a simulated model answers with: four-letter words, the same for the same prompt.

Answers are slices of one long ring of words. The prompt determines where the slice begins and, if
the request sets no length, how long it is. An answer that is sent back in the next turn tokenizes
to the ids it was generated with. In the simulator's own language every word is one token (see
`tokens`), so an answer of n tokens has 4n characters. With a real tokenizer, words are separated
by spaces and each has as many tokens as the tokenizer makes of it.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple

from simulator.model.tokens import TYPECODE, tokenize

_SYLLABLES = ("bo", "da", "fe", "gi", "ka", "lo", "mu", "ne", "pi", "ra", "so", "ta", "ve", "wi")
_RING_WORDS = 4096
#: Number of places in a real tokenizer's ring where answers can begin.
_OPENINGS = 256
#: Bounds of an answer's length, in tokens, when a request sets none.
_MIN_TOKENS, _MAX_TOKENS = 32, 256


class Opening(NamedTuple):
    """The first tokens of an answer, and the place in the ring where it continues."""

    ids: Sequence[int]
    pieces: Sequence[bytes]
    place: int


class Voice(NamedTuple):
    """A ring of tokens with their texts (ASCII, nothing to escape in JSON), and the openings."""

    ids: array[int]
    pieces: list[bytes]
    openings: Sequence[Opening]


class GeneratedAnswer:
    """The answer to one prompt: `length` tokens and their text."""

    __slots__ = ("_opening", "_voice", "ids", "length")

    def __init__(
        self, prompt: array[int], length: int, variant: int = 0, voice: Voice | None = None
    ) -> None:
        self.length = length
        self._voice = voice = voice or SIMULATED
        number = (seed(prompt) + 97 * variant) % len(voice.openings)
        self._opening = opening = voice.openings[number]
        rounds = (opening.place + length) // len(voice.ids)
        around = voice.ids if not rounds else voice.ids * (rounds + 1)
        first = array(TYPECODE, opening.ids[:length])
        self.ids = first + around[opening.place : opening.place + length - len(first)]

    def words(self, first: int, stop: int) -> list[bytes]:
        """Return the texts of the tokens from `first` up to, not including, `stop`."""
        opening, pieces = self._opening, self._voice.pieces
        opened = len(opening.pieces)
        shift, around = opening.place - opened, len(pieces)
        if first >= opened:
            return [pieces[(shift + index) % around] for index in range(first, stop)]
        rest = self.words(opened, stop) if stop > opened else []
        return [*opening.pieces[first:stop], *rest]

    def text(self) -> str:
        """Return the whole answer."""
        return b"".join(self.words(0, self.length)).decode()


def seed(prompt: array[int]) -> int:
    """Return a number that follows from the prompt alone."""
    return zlib.crc32(prompt.tobytes())


def natural_length(prompt: array[int]) -> int:
    """Return the answer's length in tokens if the request sets none."""
    return _MIN_TOKENS + seed(prompt) % (_MAX_TOKENS - _MIN_TOKENS + 1)


def ring(pieces: Callable[[str], list[tuple[int, bytes]]]) -> Voice:
    """Return the voice of a real tokenizer; `pieces` tokenizes a text into ids and their texts.

    Words of the ring are tokenized as they stand in the middle of a text, after another word and
    a space, because some tokenizers treat the first word of a text differently. Words that begin
    an answer are tokenized alone, because templates and clients strip answers.
    """
    vocabulary = [first + second for first in _SYLLABLES for second in _SYLLABLES]
    alone = {word: pieces(word) for word in vocabulary}
    before = len(alone[vocabulary[0]])
    following = {word: pieces(f"{vocabulary[0]} {word}")[before:] for word in vocabulary}
    ids, openings = array(TYPECODE), []
    texts: list[bytes] = []
    for number, word in enumerate(_words(vocabulary)):
        ids.extend(token for token, _ in following[word])
        texts.extend(text for _, text in following[word])
        if number % (_RING_WORDS // _OPENINGS) == 0:
            opening = [token for token, _ in alone[word]], [text for _, text in alone[word]]
            openings.append(Opening(*opening, len(ids)))
    return Voice(ids, texts, openings)


def _words(vocabulary: Sequence[str]) -> list[str]:
    state, words = 1, []
    for _ in range(_RING_WORDS):
        state = (state * 1_103_515_245 + 12_345) & 0x7FFF_FFFF  # rand() of ANSI C
        words.append(vocabulary[(state >> 16) % len(vocabulary)])
    return words


def _simulated() -> Voice:
    """Words of four characters without separators: one token each, none beginning with a space.

    If a client strips an answer, its tokens must not shift, so no word begins with a space.
    """
    vocabulary = [first + second for first in _SYLLABLES for second in _SYLLABLES]
    vocabulary += [f"{syllable}{end} " for syllable in _SYLLABLES for end in "nrst,.nrst"]
    words = _words(vocabulary)
    ids = tokenize("".join(words))
    openings = [Opening((), (), place) for place in range(_RING_WORDS)]
    return Voice(ids, [word.encode() for word in words], openings)


SIMULATED = _simulated()
