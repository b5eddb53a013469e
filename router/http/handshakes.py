"""TLS handshakes of clients that fail, counted by reason. Event loops do not report them."""

import logging
import ssl
from collections.abc import Iterator
from enum import Enum
from typing import Final

from prometheus_client import Metric

from router.observe.series import Counter

log = logging.getLogger("warmroute.tls")


class Why(Enum):
    """The reasons. The set is fixed, so clients cannot add metric series."""

    NOT_TLS = "not_tls"
    """The client does not speak TLS; it may speak plain HTTP."""
    NOTHING_IN_COMMON = "nothing_in_common"
    """There is no TLS version or cipher that both sides support."""
    CLIENT_CERTIFICATE = "client_certificate"
    """The client showed no valid certificate, which `tls.client_ca` asks for."""
    REFUSED = "refused"
    """The client sent an alert: most often it does not trust our certificate."""
    UNFINISHED = "unfinished"
    """The client closed the connection early, or took longer than `clients.header`."""
    OTHER = "other"


#: Reasons by OpenSSL's names of errors.
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
    """Counts the failed handshakes of one listener."""

    def __init__(self) -> None:
        self._failed = Counter(
            "warmroute_tls_failed_handshakes", "TLS handshakes of clients that failed.", ("reason",)
        )
        for why in Why:
            self._failed.begin(why.value)

    def failed(self, error: ssl.SSLError) -> None:
        """Count a handshake that ended with `error`."""
        reason = error.reason or ""
        why = Why.REFUSED if "_ALERT_" in reason else _KNOWN.get(reason, Why.OTHER)
        self._count(why, str(error))

    def unfinished(self) -> None:
        """Count a handshake that did not come to an end."""
        self._count(Why.UNFINISHED, "the client closed the connection, or took too long")

    def _count(self, why: Why, words: str) -> None:
        self._failed.inc((why.value,))
        log.debug("the TLS handshake of a client failed: %s", words)

    def metrics(self) -> Iterator[Metric]:
        """Return the counter."""
        yield self._failed.family()


class Met(ssl.SSLObject):
    """One client's TLS state. Reports a failed handshake."""

    handshakes: Handshakes
    """Where a failed handshake is counted."""
    _over = False

    def do_handshake(self) -> None:
        """Continue the handshake; event loops call this with every piece that arrives."""
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
        """Count an unfinished handshake: nothing else tells when the connection has ended."""
        if not self._over:
            self.handshakes.unfinished()
