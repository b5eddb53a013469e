"""From when until when a certificate is valid, read from its file: `ssl` tells it only of those
that others show.

A certificate is a tree of values, each after its kind and its length (RFC 5280 section 4.1, X.690).
"""

import re
from binascii import a2b_base64
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from router.units import shown_file

#: OpenSSL, too, takes the first one that stands there for the server's own.
_PEM = re.compile(rb"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----(.+?)-----END", re.DOTALL)
#: Kinds: an optional version, and a time with a year of two digits.
_VERSION, _SHORT_TIME = 0xA0, 0x17


class Validity(NamedTuple):
    """Both in seconds since 1970, UTC."""

    begins: float
    ends: float

    def complaint(self, now: float) -> str:
        """Say in words why it is not valid `now`; an empty text if it is."""
        if now > self.ends:
            return f"expired on {_written(self.ends)}"
        if now < self.begins:
            return f"is not valid before {_written(self.begins)}"
        return ""


def validity(path: Path) -> Validity | None:
    """Return that of the first certificate in a PEM file; None if it cannot be read as such."""
    try:
        found = _PEM.search(path.read_bytes())
        return _validity(a2b_base64(found[1])) if found else None
    except (OSError, ValueError, IndexError):
        return None


def complaint(path: Path, now: float) -> str:
    """Say why clients will not accept the door's certificate; an empty text if they may."""
    found = validity(path)
    why = found.complaint(now) if found is not None else ""
    return f"tls.certificate: {shown_file(path)} {why}: clients will refuse it" if why else ""


def _validity(der: bytes) -> Validity:
    """Raises ValueError and IndexError for what is no certificate."""
    _, at, _ = _part(der, 0)
    _, at, _ = _part(der, at)
    # Before it stand the version, which may be left out, serial number, algorithm and issuer.
    for _ in range(4 if der[at] == _VERSION else 3):
        _, _, at = _part(der, at)
    _, at, _ = _part(der, at)
    _, _, end = _part(der, at)
    return Validity(_time(der, at), _time(der, end))


def _part(der: bytes, at: int) -> tuple[int, int, int]:
    """Return the kind of the value that stands there, and where its content begins and ends."""
    kind, length, begin = der[at], der[at + 1], at + 2
    if length & 0x80:  # so many bytes hold the length
        size = length & 0x7F
        length, begin = int.from_bytes(der[begin : begin + size]), begin + size
    return kind, begin, begin + length


def _time(der: bytes, at: int) -> float:
    """RFC 5280 section 4.1.2.5."""
    kind, begin, end = _part(der, at)
    text = der[begin:end].decode("ascii")
    if kind == _SHORT_TIME:
        text = ("19" if text >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _written(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
