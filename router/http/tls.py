"""TLS contexts for clients and for workers: TLS 1.2 or later, with HTTP/1.1 inside.

From when until when a certificate is valid: `ssl` tells only of the certificates of peers.
"""

import logging
import ssl
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple, cast

from prometheus_client import Metric

from router.observe.metrics import Counter
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
    period = validity(path)
    why = period.complaint(now) if period is not None else ""
    return f"tls.certificate: {shown_file(path)} {why}: clients will refuse it" if why else ""


def _written(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


log = logging.getLogger("warmroute.tls")


class _ClientTls(ssl.SSLObject):
    """One client's TLS state. Counts failed handshakes, which event loops do not report."""

    failed: Counter

    def do_handshake(self) -> None:
        """Continue the handshake; event loops call this with every piece that arrives."""
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            self.failed.inc(())
            log.debug("the TLS handshake of a client failed: %s", error)
            raise


_PROTOCOLS = ["http/1.1"]


class ServerTlsContext(ssl.SSLContext):
    """The context for clients. A listener keeps it for good, but its content can be replaced.

    Each replacement is a whole new context behind this one: a context in use would go on trusting
    roots that were removed from a file, and resume their sessions (RFC 8446 section 2.2).
    """

    _current: ssl.SSLContext
    failed: Counter
    """The handshakes that have failed."""

    def show(self, settings: TlsSettings) -> None:
        """Use the current content of the files for new connections.

        Raises ValueError with a sentence; then nothing has changed.
        """
        self._current = _door_context(settings)

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """Wrap a new connection; event loops call this."""
        state = self._current.wrap_bio(incoming, outgoing, server_side, server_hostname, session)
        cast("_ClientTls", state).failed = self.failed
        return state

    def metrics(self) -> Iterator[Metric]:
        """Return the number of failed handshakes."""
        yield self.failed.family()


def door_context(settings: TlsSettings) -> ServerTlsContext:
    """Make the context for clients. Raises ValueError with a sentence."""
    context = ServerTlsContext(ssl.PROTOCOL_TLS_SERVER)
    context.failed = Counter(
        "warmroute_tls_failed_handshakes", "TLS handshakes of clients that failed.", ()
    )
    context.failed.begin()
    context.show(settings)
    return context


def _door_context(settings: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.sslobject_class = _ClientTls
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
        content = (wanted, *map(_content, (wanted.ca, wanted.certificate, wanted.key)))
        if content not in self._made:
            self._made[content] = _worker_context(wanted)
        return self._made[content]

    def keep(self, used: Iterable[ssl.SSLContext | None]) -> None:
        """Drop all contexts but these: each change of a file makes a new one."""
        still = set(used)
        self._made = {content: made for content, made in self._made.items() if made in still}


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
