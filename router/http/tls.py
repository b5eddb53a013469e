"""TLS contexts for clients and for workers: TLS 1.2 or later, with HTTP/1.1 inside.

From when until when a certificate is valid: `ssl` tells only of the certificates of peers.

TLS handshakes of clients that fail, counted by reason. Event loops do not report them.
"""

import logging
import ssl
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from enum import Enum
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple, cast

from prometheus_client import Metric

from router.observe.series import Counter
from router.runtime.quote import shown_file
from router.settings.files import load_chain, load_roots
from router.settings.model import WorkerSettings
from router.settings.server import TlsSettings, WorkerTlsSettings


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
        certificate = load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError):
        return None
    return Validity(
        certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp()
    )


def complaint(path: Path, now: float) -> str:
    """Say why clients will refuse the door's certificate; an empty text if they may accept it."""
    found = validity(path)
    why = found.complaint(now) if found is not None else ""
    return f"tls.certificate: {shown_file(path)} {why}: clients will refuse it" if why else ""


def _written(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


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


_PROTOCOLS = ["http/1.1"]


class DoorContext(ssl.SSLContext):
    """The context for clients. A listener keeps it for good, but its content can be replaced.

    Each replacement is a whole new context behind this one: a context in use would go on trusting
    roots that were removed from a file, and resume their sessions (RFC 8446 section 2.2).
    """

    _shown: ssl.SSLContext
    handshakes: Handshakes
    """Those that have failed."""

    def show(self, settings: TlsSettings) -> None:
        """Use the current content of the files for new connections.

        Raises ValueError with a sentence; then nothing has changed.
        """
        self._shown = _door_context(settings)

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """Wrap a new connection; event loops call this."""
        met = self._shown.wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        cast("Met", met).handshakes = self.handshakes
        return met


def door_context(settings: TlsSettings) -> DoorContext:
    """Make the context for clients. Raises ValueError with a sentence."""
    context = DoorContext(ssl.PROTOCOL_TLS_SERVER)
    context.handshakes = Handshakes()
    context.show(settings)
    return context


def _door_context(settings: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.sslobject_class = Met
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(_PROTOCOLS)
    load_chain(context, settings.certificate, settings.key)
    if settings.client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        load_roots(context, settings.client_ca)
    return context


class Contexts:
    """The contexts for workers: one for all workers with the same TLS settings and files."""

    def __init__(self) -> None:
        self._made: dict[object, ssl.SSLContext] = {}

    def of(self, worker: WorkerSettings) -> ssl.SSLContext | None:
        """Return the context for a worker, None without TLS. Raises ValueError."""
        if not worker.url.startswith("https://"):
            return None
        wanted = worker.tls or WorkerTlsSettings()
        said = (wanted, *map(_content, (wanted.ca, wanted.certificate, wanted.key)))
        if said not in self._made:
            self._made[said] = _worker_context(wanted)
        return self._made[said]

    def keep(self, used: Iterable[ssl.SSLContext | None]) -> None:
        """Drop all contexts but these: each change of a file makes a new one."""
        still = set(used)
        self._made = {said: made for said, made in self._made.items() if made in still}


def _worker_context(settings: WorkerTlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # checks the chain and the name
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(_PROTOCOLS)
    if settings.ca is None:
        context.load_default_certs()
    else:
        load_roots(context, settings.ca)
    if settings.certificate is not None and settings.key is not None:
        load_chain(context, settings.certificate, settings.key)
    return context


def _content(path: Path | None) -> bytes:
    """Return a digest of a file's content; b"" if it cannot be read, which is reported later."""
    try:
        return sha256(path.read_bytes()).digest() if path else b""
    except OSError:
        return b""


def explain(error: BaseException) -> str | None:
    """Say how TLS failed, if `error` or any of its causes is a TLS error; otherwise None."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is refused: {cause.verify_message}"
        if isinstance(cause, ssl.SSLError) and cause.reason:
            return f"TLS failed: {cause.reason.lower().replace('_', ' ')}"
        cause = cause.__cause__ or cause.__context__
    return None


#: Alerts of a peer that rejects our certificate; none is sent after it was accepted.
_NOT_CONTENT = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED", "HANDSHAKE_FAILURE")


def turned_away(error: BaseException | None) -> str | None:
    """Say how a worker rejected our certificate, if that is why it closed the connection.

    In TLS 1.3 our handshake is complete before the worker checks it, so we may already have sent a
    request. The worker has not read a byte of that (RFC 8446 section 4.4.2.4).
    """
    if not isinstance(error, ssl.SSLError) or "_ALERT_" not in (reason := error.reason or ""):
        return None
    if not any(alert in reason for alert in _NOT_CONTENT):
        return None
    return f"could not be reached: {explain(error)}"
