"""The seam to a shared store (L2): which first tokens of a prompt lie there, for all to load."""

from typing import Protocol


class StoreDown(Exception):
    """The store cannot be asked; the message is a sentence."""


class Lookup(Protocol):
    """One store. Nobody needs it: without an answer, what else is known decides."""

    @property
    def chunk(self) -> int:
        """Tokens of a chunk: what is shorter is never there."""

    async def held(self, ids: bytes, model: str, salt: str) -> int:
        """How many of the first tokens lie there. Raises StoreDown.

        `ids` are token ids, 32 bits each in the machine's order; `model` is the name that was asked
        for, `salt` what keeps the cache apart from others.
        """

    async def wrote(self, ids: bytes, model: str, salt: str) -> bool | None:
        """Whether the last full chunk of these tokens lies there, whatever lies before it; None if
        it cannot be asked about. Raises StoreDown."""

    def compare(self, model: str) -> str:
        """Say by which names chunks are looked for and where, and what to compare them with: the
        end of a sentence. `model` is the name that was asked for."""

    async def check(self) -> str:
        """Say what is wrong with what lies there, in a sentence; empty if nothing is seen to be.

        Raises StoreDown.
        """

    async def close(self) -> None:
        """Let go of connections."""
