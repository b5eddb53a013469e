"""Identifies the sender of a request by its key. Pure: headers in, a name or None out.

Keys are compared as SHA-256 digests, each in constant time, and all of them even after a match, so
that the response time reveals nothing about a key.
"""

from collections.abc import Iterable
from hashlib import sha256
from hmac import compare_digest

BARE = (b"x-api-key", b"api-key")
"""Headers that hold a key and nothing else: Anthropic's clients send the first, Azure's the other.
"""
_BEARER = b"bearer"


class Keys:
    """The keys that open one door."""

    __slots__ = ("_digests",)

    def __init__(self, named: Iterable[tuple[str, str]]) -> None:
        """Take keys, each after its name in metrics and logs; only their digests are kept.

        Of several names of one key the last counts.
        """
        self._digests = [(name, _digest(key.encode())) for name, key in named]

    def __len__(self) -> int:
        return len(self._digests)

    def who(self, headers: Iterable[tuple[bytes, bytes]]) -> str | None:
        """Return the name of the key in a request, or None if it is not let in.

        A request may carry its key several times, but only one key: other software that reads the
        request might look at the other one.
        """
        brought = _credentials(headers)
        if brought is None:
            return None
        digest, found = _digest(brought), None
        for name, known in self._digests:
            if compare_digest(digest, known):
                found = name
        return found


def _credentials(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """Return the one credential of a request, or None if there is none or more than one."""
    keys = set[bytes]()
    for name, value in headers:
        header = name.lower()
        if header == b"authorization":
            keys.add(_bearer(value.strip(b" \t")))
        elif header in BARE:
            keys.add(value.strip(b" \t"))
    return (keys.pop() or None) if len(keys) == 1 else None


def _bearer(value: bytes) -> bytes:
    """`Bearer abc` → abc, whatever the case of the scheme (RFC 9110, section 11.1)."""
    scheme, _, token = value.partition(b" ")
    return token.lstrip(b" ") if scheme.lower() == _BEARER else b""


def _digest(key: bytes) -> bytes:
    return sha256(key).digest()
