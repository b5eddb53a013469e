"""Checks AWS signatures of requests: Signature Version 4.

botocore itself computes the expected signature from what was signed; none of that is reimplemented
here.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256
from hmac import compare_digest
from time import time
from typing import Any

from router.api.errors import APIError, Headers
from router.http.access import Keys
from router.http.exchange import Exchange
from router.http.headers import header
from router.settings.sessions import SigningKeySettings

_SCHEME = b"AWS4-HMAC-SHA256 "
#: Most seconds by which a signature's time may differ from ours.
MAX_CLOCK_SKEW_S = 300.0
_DATE = "%Y%m%dT%H%M%SZ"


class Unsigned(APIError):
    """No valid signature."""

    status = 403
    type = "invalid_request_error"
    code = "invalid_signature"


class SigningKeys:
    """The signing keys, which the gate checks before a body is read; `others` are accepted too."""

    def __init__(self, keys: Sequence[SigningKeySettings], others: Keys | None) -> None:
        self._known = {key.access_key for key in keys}
        self._others = others

    def identify(self, headers: Headers) -> str | None:
        """Return the access key that the request claims to be signed with, or another key's
        owner."""
        access = _parts(headers).get("Credential", "").split("/")[0]
        if access in self._known:
            return access
        return self._others.identify(headers) if self._others is not None else None


class Verifier:
    """Checks signatures, if there are signing keys."""

    def __init__(self, keys: Sequence[SigningKeySettings]) -> None:
        self._secrets = {key.access_key: key.secret_key.get_secret_value() for key in keys}

    def check(self, exchange: Exchange, now: float | None = None) -> None:
        """Raise Unsigned unless the signature is valid.

        A request that was let in by another kind of key has no signature to check.
        """
        if not self._secrets or not header(exchange.headers, b"authorization").startswith(_SCHEME):
            return
        parts = _parts(exchange.headers)
        access, *scope = parts.get("Credential", "").split("/")
        secret = self._secrets.get(access)
        if secret is None or len(scope) != 4:
            raise Unsigned("The security token included in the request is invalid.")
        if not _covers(parts, exchange.headers):
            raise Unsigned(
                "The signature does not cover `Host` and every `X-Amz…` header field, each once."
            )
        when = header(exchange.headers, b"x-amz-date").decode("latin-1")
        if not _is_recent(when, time() if now is None else now):
            raise Unsigned("Signature expired, or its time is not ours.")
        body_hash = header(exchange.headers, b"x-amz-content-sha256").decode("latin-1")
        if body_hash and body_hash != sha256(exchange.body).hexdigest():
            raise Unsigned("The body is not the one that was signed.")
        try:
            signature = _signature(exchange, (access, secret), scope, when, parts)
        except ValueError:  # such a URL cannot have been signed
            raise Unsigned("The request cannot be understood as a signed one.") from None
        signed = parts.get("Signature", "")
        if not compare_digest(signature.encode("latin-1"), signed.encode("latin-1")):
            raise Unsigned(
                "The request signature we calculated does not match the signature you provided."
            )


def _signature(
    exchange: Exchange, key: tuple[str, str], scope: list[str], when: str, parts: dict[str, str]
) -> str:
    """Return the expected signature."""
    from botocore.auth import SigV4Auth  # noqa: PLC0415 - an extra
    from botocore.awsrequest import AWSRequest  # noqa: PLC0415
    from botocore.credentials import Credentials  # noqa: PLC0415

    signed = set(parts.get("SignedHeaders", "").split(";"))
    fields = {name.decode(): value.decode("latin-1") for name, value in exchange.headers}
    url = f"http://{fields.get('host', '')}{exchange.path}{exchange.query.decode('ascii')}"
    request: Any = AWSRequest(method=exchange.method, url=url, data=exchange.body)
    for name, value in fields.items():
        if name in signed:
            request.headers[name] = value
    request.context["timestamp"] = when
    auth: Any = SigV4Auth(Credentials(*key), scope[2], scope[1])
    text = auth.string_to_sign(request, auth.canonical_request(request))
    return str(auth.signature(text, request))


def _parts(headers: Headers) -> dict[str, str]:
    """Parse `Credential=…, SignedHeaders=…, Signature=…`."""
    value = header(headers, b"authorization")
    if not value.startswith(_SCHEME):
        return {}
    pairs = value[len(_SCHEME) :].decode("latin-1").split(",")
    return dict(pair.strip().partition("=")[::2] for pair in pairs)


def _covers(parts: dict[str, str], headers: Headers) -> bool:
    """Whether everything relevant is signed, so that nobody on the way could add a session, say.

    No signed header may occur twice, because the wrong one could be read.
    """
    signed = {name.encode() for name in parts.get("SignedHeaders", "").split(";")}
    names = [name for name, _ in headers if name in signed or _counts(name)]
    return len(names) == len(set(names)) and signed.issuperset(names)


def _counts(name: bytes) -> bool:
    """Whether a header matters here or to AWS."""
    return name == b"host" or (name.startswith(b"x-amz") and name != b"x-amzn-trace-id")


def _is_recent(when: str, now: float) -> bool:
    try:
        signed_at = datetime.strptime(when, _DATE).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return False
    return abs(signed_at - now) <= MAX_CLOCK_SKEW_S
