"""Header fields on their way through: which pass, which end here, which are written anew.

Hop-by-hop fields are those of RFC 9110 section 7.6.1, and every field that `Connection` names.
"""

from random import getrandbits
from typing import Protocol

from router.errors import Headers

#: RFC 9110 section 7.6.1; Proxy-* belong to this hop as well (section 11.7).
HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-authentication-info",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
#: What SageMaker's clients say to SageMaker: never for a worker that keeps no sessions. vLLM
#: answers 400 to a session id when it keeps none (model-hosting-container-standards, `sessions/`).
FOR_SAGEMAKER = frozenset(
    b"x-amzn-sagemaker-" + name
    for name in (
        b"accept",
        b"custom-attributes",
        b"enable-explanations",
        b"inference-component",
        b"inference-id",
        b"prefix-aware-id",
        b"session-id",
        b"target-container-hostname",
        b"target-model",
        b"target-variant",
    )
) | {
    b"amz-sdk-invocation-id",
    b"amz-sdk-request",
    b"x-amz-content-sha256",
    b"x-amz-date",
    b"x-amz-security-token",
}
#: Written anew towards the worker.
_REWRITTEN = (
    HOP_BY_HOP
    | FOR_SAGEMAKER
    | {
        b"host",
        b"content-length",
        b"expect",
        b"x-request-id",
        b"http2-settings",
    }
)
#: Where clients put keys: OpenAI's, Anthropic's and Azure's.
CREDENTIALS = frozenset((b"authorization", b"x-api-key", b"api-key"))
_REWRITTEN_KEYED = _REWRITTEN | CREDENTIALS
#: Which web pages may read an answer is for the door to say: vLLM lets all of them.
_FOR_PAGES = frozenset(
    (
        b"access-control-allow-origin",
        b"access-control-allow-credentials",
        b"access-control-expose-headers",
    )
)
#: Written anew towards the client, or not at all.
_OURS = (
    HOP_BY_HOP
    | _FOR_PAGES
    | {
        b"content-length",
        b"x-request-id",
        b"x-warmroute-worker",
        b"x-warmroute-decision",
        b"x-warmroute-session",
        # A worker tells the router of its sessions, and the router tells the client.
        b"x-amzn-sagemaker-session-id",
        b"x-amzn-sagemaker-new-session-id",
        b"x-amzn-sagemaker-closed-session-id",
    }
)


def new_id() -> bytes:
    """Return an id for a request that brought none."""
    return b"%032x" % getrandbits(128)


def header(headers: Headers, wanted: bytes) -> bytes:
    """Return the first value of a field, names being in lower case already; or nothing."""
    for name, value in headers:
        if name == wanted:
            return value
    return b""


def passing_fields(headers: Headers, named: frozenset[bytes] | None, *, keyed: bool) -> bytes:
    """Return a client's header fields as a worker may see them, one line each.

    `named` are those that `Connection` names; with `keyed` credentials are kept back too.
    """
    dropped = _REWRITTEN_KEYED if keyed else _REWRITTEN
    if named:
        dropped |= named
    return b"".join([b"%b: %b\r\n" % pair for pair in headers if pair[0] not in dropped])


class Incoming(Protocol):
    """A request as far as its head is concerned."""

    query: bytes
    identity: bytes

    def passing(self, *, keyed: bool) -> bytes:
        """Header lines that pass on to a worker."""


def upstream_head(
    path: bytes, request: Incoming, host: bytes, key: bytes | None, length: int
) -> bytes:
    """Write the request line and header fields for a worker, with a body of `length` bytes.

    `key` is the worker's own; an empty one stands for none, and the client's is kept back too.
    With None the client's credentials pass.
    """
    return (
        b"POST %b%b HTTP/1.1\r\nhost: %b\r\nx-request-id: %b\r\ncontent-length: %d\r\n"
        b"%b%bvia: 1.1 warmroute\r\n\r\n"  # after those of proxies before us
    ) % (
        path,
        request.query,
        host,
        request.identity,
        length,
        b"authorization: Bearer %b\r\n" % key if key else b"",
        request.passing(keyed=key is not None),
    )


def answer_fields(headers: Headers) -> bytes:
    """Return a worker's header fields as the client may see them, one line each."""
    dropped: frozenset[bytes] = _OURS
    named = connection_named(headers)
    if named:
        dropped |= named
    return b"".join([b"%b: %b\r\n" % pair for pair in headers if pair[0] not in dropped])


def connection_named(headers: Headers) -> frozenset[bytes] | None:
    """Return the fields that `Connection` names, in lower case; None if it names none."""
    named: frozenset[bytes] | None = None
    for name, value in headers:
        if name == b"connection" and value.lower() not in {b"keep-alive", b"close"}:
            tokens = frozenset(token.strip().lower() for token in value.split(b","))
            named = tokens | (named or frozenset())
    return named
