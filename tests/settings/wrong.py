"""What is said of a settings file that is wrong."""

from pathlib import Path

import pytest

from router.settings.errors import SettingsError
from router.settings.loader import loads

WORKER = "workers: [http://a:1]\n"
KEYS = {
    "ONE": "sk-one-0123456789",
    "TWO": "sk-two-0123456789",
    "SHORT": "sk-short-012345",
    "SPACED": "sk spaced 0123456789",
}
"""Environment variables of the fixture `keys`; no message may show their values."""


def wrong(text: str, folder: Path | None = None) -> list[str]:
    """Return the messages for a text, one a line."""
    with pytest.raises(SettingsError) as caught:
        loads(text, "f", folder)
    message = str(caught.value)
    assert message.split("\n") == [str(problem) for problem in caught.value.problems]
    assert not any(key in message for key in (*KEYS.values(), "sekret", "BEGIN"))
    return message.split("\n")


def refuses(text: str, *expected: tuple[str, str], folder: Path | None = None) -> None:
    """Check that each message begins with a place, and has these words after it."""
    messages = wrong(text, folder)
    assert len(messages) == len(expected), messages
    for message, (place, words) in zip(messages, expected, strict=True):
        assert message.startswith(f"f:{place}: "), message
        assert words in message
