"""Which of several names a key belongs to, so that everybody who asks says the same.

Highest random weight (Thaler and Ravishankar 1998): each name draws a number for the key, and the
largest wins. When a name goes, only its keys move; no state is shared or kept.
"""

from collections.abc import Iterable

from xxhash import xxh3_64_intdigest


def owner(key: str, names: Iterable[str]) -> str:
    """Return the name that `key` belongs to. Raises ValueError when there are no names."""
    text = key.encode()
    return max(
        names, key=lambda name: (xxh3_64_intdigest(text, xxh3_64_intdigest(name.encode())), name)
    )
