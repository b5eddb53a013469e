"""A request's prompt as the ids that its engine will compute, for one model."""

from typing import Protocol

from router.identity.asked import Body, decoded, plain
from router.identity.choice import chosen
from router.identity.media import Head
from router.identity.unlike import NOT_TEXT, Unlike
from router.openai import Endpoint, Prompted

#: Characters of the longest prompt that is tokenized: a million tokens of most languages. What
#: tokenizers are slow with, a letter over and over, takes two seconds then. Bytes, too, of the
#: longest request that is read for it, except for images and the like.
LONGEST = 4 << 20
#: What only the names of parts with images and the like have in them.
_MEDIA = (b"image_url", b"audio_url", b"video_url", b"input_audio")


class Way(Protocol):
    """How the engines of one model make tokens. May be used by several threads at once."""

    @property
    def short(self) -> int:
        """Bytes of a request that may be tokenized while others wait."""

    @property
    def dated(self) -> bool:
        """Whether prompts may hold the time, by the engine's clock and in its zone."""

    def chat(self, endpoint: Endpoint, asked: Body, size: int) -> bytes:
        """Return the ids of a chat in any dialect, whose body has `size` bytes. Raises Unlike."""

    def head(self, endpoint: Endpoint, asked: Body, size: int) -> Head:
        """Return what is known of such a chat with images and the like. Raises Unlike."""

    def text(self, text: str, *, special: bool) -> bytes:
        """Return the ids of a text, at most `LONGEST`; with `special`, BOS too. Raises Unlike."""


class Exact:
    """Knows one model's tokens. May be used by several threads at once."""

    def __init__(self, way: Way) -> None:
        self._way = way

    @property
    def short(self) -> int:
        """Bytes of a request that may be tokenized while others wait."""
        return self._way.short

    @property
    def dated(self) -> bool:
        """Whether prompts may hold the time: ours may be another one than the engine's."""
        return self._way.dated

    def ids(self, endpoint: Endpoint, body: bytes, *, left_out: bool | None = False) -> bytes:
        """Return the prompt's ids, 32 bits each, lowest byte first. Raises Unlike.

        `left_out` are tools of which none may be chosen; None: that is not known.
        """
        if len(body) > LONGEST:
            raise Unlike(NOT_TEXT if any(name in body for name in _MEDIA) else "too long")
        asked = decoded(body)
        match endpoint.prompted:
            case Prompted.COMPLETION:
                return self._plain(asked, "prompt")
            case Prompted.INPUT:
                return self._plain(asked, "input")
            case Prompted.NOTHING:
                raise Unlike("no prompt")
        return self._way.chat(endpoint, chosen(asked, left_out=left_out), len(body))

    def head(self, endpoint: Endpoint, body: bytes, *, left_out: bool | None = False) -> Head:
        """Return what is known of a chat with images and the like. Raises Unlike."""
        return self._way.head(endpoint, chosen(decoded(body), left_out=left_out), len(body))

    def _plain(self, asked: Body, field: str) -> bytes:
        found = plain(asked, field)
        if isinstance(found, bytes):
            return found
        if len(found.text) > LONGEST:
            raise Unlike("too long")
        return self._way.text(found.text, special=found.special)
