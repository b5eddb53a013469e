"""From when until when a certificate is valid: `ssl` tells only of the certificates of peers."""

from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from router.runtime.quoting import shown_file


class Validity(NamedTuple):
    """Both in seconds since 1970, UTC."""

    begins: float
    ends: float

    def complaint(self, now: float) -> str:
        """Say in words why the certificate is not valid `now`; an empty text if it is."""
        if now > self.ends:
            return f"expired on {_written(self.ends)}"
        if now < self.begins:
            return f"is not valid before {_written(self.begins)}"
        return ""


def validity(path: Path) -> Validity | None:
    """Return that of the first certificate in a PEM file; None if it cannot be read as such.

    The first is the server's own, as OpenSSL has it.
    """
    from cryptography.x509 import load_pem_x509_certificate  # noqa: PLC0415 - only TLS needs it

    try:
        found = load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError):
        return None
    return Validity(found.not_valid_before_utc.timestamp(), found.not_valid_after_utc.timestamp())


def complaint(path: Path, now: float) -> str:
    """Say why clients will refuse the door's certificate; an empty text if they may accept it."""
    found = validity(path)
    why = found.complaint(now) if found is not None else ""
    return f"tls.certificate: {shown_file(path)} {why}: clients will refuse it" if why else ""


def _written(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
