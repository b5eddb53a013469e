"""The exception for prompts whose tokens cannot be known.

Decoded JSON.
"""

from typing import Any, TypeAlias

#: The reason for most such prompts: images and the like.
NOT_TEXT = "parts that are not text"


class NotReproducible(Exception):
    """The engine's tokens cannot be known.

    The reason is a few words, the same for all prompts of that kind. It is a metric's label, so it
    must not contain anything that a client wrote.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


#: Any JSON value: string, number, true, false, null, or a list or object of these.
Json: TypeAlias = Any
