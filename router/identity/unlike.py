"""What cannot be known of a prompt."""

#: The reason of most such prompts: images and the like.
NOT_TEXT = "parts that are not text"


class Unlike(Exception):
    """The engine's tokens cannot be known, and why: a few words, the same for all such prompts.

    The reason is a metric's label, so it must not hold anything that a client wrote.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
