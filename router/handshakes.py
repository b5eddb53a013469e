"""Handshakes of TLS that fail at the door: counted by why. Event loops tell nobody of them."""

import logging
import ssl
from collections.abc import Iterator
from enum import Enum
from typing import Final

from prometheus_client import Metric

from router.series import Counter

log = logging.getLogger("warmroute.tls")


class Why(Enum):
    """All there are: no client can make a series."""

    NOT_TLS = "not_tls"
    """What came is something else, plain HTTP say."""
    NOTHING_IN_COMMON = "nothing_in_common"
    """No version or cipher that both know."""
    CLIENT_CERTIFICATE = "client_certificate"
    """It showed none (`tls.client_ca`), or none that is valid."""
    REFUSED = "refused"
    """The client did not accept what it was shown."""
    UNFINISHED = "unfinished"
    """It closed the connection before the end, or took longer than `clients.header`."""
    OTHER = "other"


#: By OpenSSL's names for what is wrong.
_KNOWN: Final = {
    "HTTP_REQUEST": Why.NOT_TLS,
    "HTTPS_PROXY_REQUEST": Why.NOT_TLS,
    "WRONG_VERSION_NUMBER": Why.NOT_TLS,
    "PACKET_LENGTH_TOO_LONG": Why.NOT_TLS,
    "UNSUPPORTED_PROTOCOL": Why.NOTHING_IN_COMMON,
    "NO_SHARED_CIPHER": Why.NOTHING_IN_COMMON,
    "NO_SUITABLE_KEY_SHARE": Why.NOTHING_IN_COMMON,
    "CERTIFICATE_VERIFY_FAILED": Why.CLIENT_CERTIFICATE,
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": Why.CLIENT_CERTIFICATE,
}


class Handshakes:
    """Those that failed at one door."""

    def __init__(self) -> None:
        self._failed = Counter(
            "warmroute_tls_failed_handshakes", "TLS handshakes of clients that failed.", ("reason",)
        )
        for why in Why:
            self._failed.begin(why.value)

    def failed(self, error: ssl.SSLError) -> None:
        """One has failed by this."""
        reason = error.reason or ""
        why = Why.REFUSED if "_ALERT_" in reason else _KNOWN.get(reason, Why.OTHER)
        self._count(why, str(error))

    def unfinished(self) -> None:
        """A client is gone, or was sent away, before the end."""
        self._count(Why.UNFINISHED, "the client closed the connection, or took too long")

    def _count(self, why: Why, words: str) -> None:
        self._failed.inc((why.value,))
        log.debug("the TLS handshake of a client failed: %s", words)

    def metrics(self) -> Iterator[Metric]:
        """Return the one series."""
        yield self._failed.family()


class Met(ssl.SSLObject):
    """TLS with one client."""

    handshakes: Handshakes
    """Where it is counted if it fails."""
    _over = False

    def do_handshake(self) -> None:
        """Go on with it, as event loops do with all that comes in."""
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            self._over = True
            self.handshakes.failed(error)
            raise
        self._over = True

    def __del__(self) -> None:
        """It is let go of with its connection: nothing else tells that this has ended."""
        if not self._over:
            self.handshakes.unfinished()
