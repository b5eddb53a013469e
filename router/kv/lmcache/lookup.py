"""The interface to a shared store (L2): how many of a prompt's first tokens any worker can load."""

from typing import Protocol


class LookupFailed(Exception):
    """The store cannot be asked; the message is a sentence."""


class Lookup(Protocol):
    """One store. It is optional: without its answer, decisions rest on what else is known."""

    @property
    def chunk(self) -> int:
        """Tokens per chunk; anything shorter is never stored."""

    async def held(self, ids: bytes, model: str, salt: str) -> int:
        """Return how many of the first tokens are stored. Raises LookupFailed.

        `ids` are token ids, 32 bits each in the machine's byte order. `model` is the name in the
        request, `salt` what separates caches.
        """

    async def wrote(self, ids: bytes, model: str, salt: str) -> bool | None:
        """Return whether the last full chunk of these tokens is stored, whatever comes before it.

        None if that cannot be asked. Raises LookupFailed.
        """

    def compare(self, model: str) -> str:
        """Return the end of a sentence: which names are looked up where, and how to check them.

        `model` is the name in the request.
        """

    async def check(self) -> str:
        """Return what is wrong with the store's content, as a sentence; empty if nothing is.

        Raises LookupFailed.
        """

    async def close(self) -> None:
        """Close all connections."""
