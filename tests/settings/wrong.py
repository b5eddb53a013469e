"""What is said of a settings file that is wrong."""

import pytest

from router.settings.errors import SettingsError
from router.settings.loader import loads

WORKER = "workers: [http://a:1]\n"


def wrong(text: str) -> list[str]:
    """Return the messages for a text, one a line."""
    with pytest.raises(SettingsError) as caught:
        loads(text, "f")
    assert str(caught.value).split("\n") == [str(one) for one in caught.value.problems]
    return str(caught.value).split("\n")
