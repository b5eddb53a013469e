"""A request's prompt as the token ids that its engine will compute, for one model."""

from typing import Protocol

from router.api.request import Endpoint, Prompted
from router.rendering.body import Body, plain, readable
from router.rendering.choice import chosen
from router.rendering.errors import NOT_TEXT, Unlike
from router.rendering.media import Head
from router.runtime.slices import BYTES, rest

#: Longest prompt that is tokenized, in characters: a million tokens of most languages. Also the
#: longest request read for that, in bytes, unless it has images and the like. The slowest input for
#: tokenizers, one letter repeated, takes two seconds at this length.
LONGEST = 4 << 20
#: Strings that occur in requests with images and the like.
_MEDIA = (b"image_url", b"audio_url", b"video_url", b"input_audio")


class Way(Protocol):
    """How the engines of one model make tokens. May be used by several threads at once."""

    @property
    def short(self) -> int:
        """Largest request, in bytes, that is tokenized on the event loop."""

    @property
    def dated(self) -> bool:
        """Whether prompts may contain the time, by the engine's clock and in its time zone."""

    def chat(self, endpoint: Endpoint, asked: Body, size: int) -> bytes:
        """Return the ids of a chat in any dialect whose body has `size` bytes. Raises Unlike."""

    def head(self, endpoint: Endpoint, asked: Body, size: int) -> Head:
        """Return what is known of a chat with images and the like. Raises Unlike."""

    def text(self, text: str, *, special: bool) -> bytes:
        """Return the ids of a text of at most `LONGEST` characters; with `special`, BOS too. Raises
        Unlike."""


class Exact:
    """Computes one model's tokens. May be used by several threads at once."""

    def __init__(self, way: Way) -> None:
        self._way = way

    @property
    def short(self) -> int:
        """Largest request, in bytes, that is tokenized on the event loop."""
        return self._way.short

    @property
    def dated(self) -> bool:
        """Whether prompts may contain the time, in which case ours may differ from the engine's."""
        return self._way.dated

    def ids(self, endpoint: Endpoint, body: bytes, *, left_out: bool | None = False) -> bytes:
        """Return the prompt's ids, 32 bits each, little-endian. Raises Unlike.

        `left_out`: whether the engine leaves out tools with `tool_choice: none`; None: not known.
        """
        if len(body) > LONGEST:
            raise Unlike(NOT_TEXT if _has_media(body) else "too long")
        asked = readable(endpoint, body)
        match endpoint.prompted:
            case Prompted.COMPLETION | Prompted.INPUT:
                return self._plain(asked, endpoint)
            case Prompted.NOTHING:
                raise Unlike("no prompt")
        return self._way.chat(endpoint, chosen(asked, left_out=left_out), len(body))

    def head(self, endpoint: Endpoint, body: bytes, *, left_out: bool | None = False) -> Head:
        """Return what is known of a chat with images and the like. Raises Unlike."""
        return self._way.head(
            endpoint, chosen(readable(endpoint, body), left_out=left_out), len(body)
        )

    def _plain(self, asked: Body, endpoint: Endpoint) -> bytes:
        found = plain(asked, endpoint)
        if isinstance(found, bytes):
            return found
        if len(found.text) > LONGEST:
            raise Unlike("too long")
        return self._way.text(found.text, special=found.special)


def _has_media(body: bytes) -> bool:
    for start in range(0, len(body), BYTES):
        piece = body[start : start + BYTES + max(map(len, _MEDIA))]
        if any(name in piece for name in _MEDIA):
            return True
        rest()
    return False
