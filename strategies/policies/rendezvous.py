"""Rendezvous hashing: assigns a key to one of several names, the same in every process.

Highest random weight (Thaler and Ravishankar 1998): each name is hashed with the key, and the
largest hash wins. When a name goes, only its keys move. No state is shared or kept.
"""

from collections.abc import Iterable

from xxhash import xxh3_64_intdigest


def owner(key: str, names: Iterable[str]) -> str:
    """Return the name that `key` belongs to. Raises ValueError when there are no names."""
    text = key.encode()
    return max(
        names, key=lambda name: (xxh3_64_intdigest(text, xxh3_64_intdigest(name.encode())), name)
    )
