"""What may go wrong between a model's folder and a prompt's tokens."""

from typing import Any, TypeAlias

#: Any JSON value: string, number, true, false, null, or a list or object of these.
Json: TypeAlias = Any

#: The reason for most prompts whose tokens cannot be known: images and the like.
NOT_TEXT = "parts that are not text"


class NotReproducible(Exception):
    """The engine's tokens cannot be known.

    The reason is a few words, the same for all prompts of that kind. It is a metric's label, so it
    must not contain anything that a client wrote.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class BadFolder(Exception):
    """Something in a model's folder is wrong; the message says what and where."""
