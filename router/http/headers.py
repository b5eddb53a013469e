"""Which header fields pass through the router, which are dropped, and which are rewritten.

Hop-by-hop fields are those of RFC 9110 section 7.6.1, and every field that `Connection` lists.

A request as a worker may see it: without a header field that is not for it, or renumbered.
"""

from random import getrandbits
from typing import Protocol

from router.api.errors import CREDENTIALS, Headers

#: RFC 9110 section 7.6.1; `Proxy-*` fields are hop-by-hop as well (section 11.7).
HOP_BY_HOP = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization"),
        *(b"proxy-authentication-info", b"proxy-connection", b"te", b"trailer"),
        *(b"transfer-encoding", b"upgrade"),
    )
)
#: What clients of SageMaker send to SageMaker itself. Passed on only to workers that keep sessions:
#: any other vLLM answers 400 to a session id (model-hosting-container-standards, `sessions/`).
FOR_SAGEMAKER = frozenset(
    b"x-amzn-sagemaker-" + name
    for name in (
        *(b"accept", b"custom-attributes", b"enable-explanations", b"inference-component"),
        *(b"inference-id", b"prefix-aware-id", b"session-id", b"target-container-hostname"),
        *(b"target-model", b"target-variant"),
    )
) | {
    *(b"amz-sdk-invocation-id", b"amz-sdk-request", b"x-amz-content-sha256", b"x-amz-date"),
    b"x-amz-security-token",
}
#: Dropped or rewritten on the way to the worker. It gets the body decoded (`content_coding.py`),
#: and is to answer in no coding: what it says is read here.
_REWRITTEN = (
    HOP_BY_HOP
    | FOR_SAGEMAKER
    | {
        *(b"host", b"accept-encoding", b"content-encoding", b"content-length", b"expect"),
        *(b"x-request-id", b"http2-settings"),
    }
)
_REWRITTEN_KEYED = _REWRITTEN | CREDENTIALS
#: By which routers choose for an engine, or for a sidecar in front of it: an address that it dials,
#: a rank, an instance. Dropped too, unless the operator trusts the client (`engine_fields`).
STEERING = frozenset(
    (
        # vLLM (`entrypoints/generate/base/serving.py`) and NVIDIA Dynamo
        *(b"x-data-parallel-rank", b"x-dp-rank", b"x-prefill-dp-rank", b"x-worker-instance-id"),
        b"x-prefill-instance-id",
        # llm-d's sidecar
        *(b"x-prefiller-host-port", b"x-prefiller-url", b"x-encoder-hosts-ports"),
        *(b"x-data-parallel-host-port", b"x-kv-cache-source-host-port", b"x-bypass-remote-prefill"),
        # Gateway API Inference Extension
        *(b"x-gateway-destination-endpoint", b"x-gateway-destination-endpoint-served"),
        b"x-gateway-destination-endpoint-subset",
        # the proxy of vLLM's P2P connector, and SGLang's gateway
        b"x-kv-target",
        b"x-smg-target-worker",
    )
)
#: Which web pages may read an answer is decided by the router's `cors`; vLLM allows all of them.
_FOR_PAGES = frozenset(
    (
        *(b"access-control-allow-origin", b"access-control-allow-credentials"),
        b"access-control-expose-headers",
    )
)
#: Dropped or rewritten on the way to the client.
_OURS = (
    HOP_BY_HOP
    | _FOR_PAGES
    | {
        *(b"content-length", b"x-request-id", b"x-warmroute-worker", b"x-warmroute-decision"),
        *(b"x-warmroute-preempted", b"x-warmroute-reason", b"x-warmroute-cost"),
        b"x-warmroute-session",
        # Workers report their sessions to the router, which reports them to the client.
        *(b"x-amzn-sagemaker-session-id", b"x-amzn-sagemaker-new-session-id"),
        b"x-amzn-sagemaker-closed-session-id",
    }
)


def new_id() -> bytes:
    """Return an id for a request that brought none."""
    return b"%032x" % getrandbits(128)


def header(headers: Headers, wanted: bytes) -> bytes:
    """Return the first value of a field, or nothing; all names must be in lower case already."""
    for name, value in headers:
        if name == wanted:
            return value
    return b""


def passing_fields(
    headers: Headers, named: frozenset[bytes] | None, *, keyed: bool, steers: bool
) -> bytes:
    """Return a client's header fields as a worker may see them, one line each.

    `named` are the fields that `Connection` lists; with `keyed`, credentials are dropped too, and
    those that steer engines unless the client `steers`.
    """
    dropped: frozenset[bytes] = _REWRITTEN_KEYED if keyed else _REWRITTEN
    if not steers:
        dropped |= STEERING
    if named:
        dropped |= named
    kept = [pair for pair in headers if pair[0] not in dropped]
    if not keyed:  # equal credentials are one
        first = {pair: at for at, pair in reversed(list(enumerate(kept)))}
        kept = [p for at, p in enumerate(kept) if p[0] not in CREDENTIALS or first[p] == at]
    return b"".join([b"%b: %b\r\n" % pair for pair in kept])


class Incoming(Protocol):
    """The parts of a request that the head sent to a worker is made of."""

    query: bytes
    identity: bytes

    def passing(self, *, keyed: bool) -> bytes:
        """Return the header lines for a worker, without the client's credentials if `keyed`."""


def upstream_head(
    path: bytes,
    request: Incoming,
    host: bytes,
    key: bytes | None,
    length: int,
    *,
    method: bytes = b"POST",
) -> bytes:
    """Write the request line and header fields for a worker, with a body of `length` bytes.

    `key` is the worker's own API key. With an empty one no key is sent, not even the client's; with
    None, the client's credentials pass.
    """
    return (
        b"%b %b%b HTTP/1.1\r\nhost: %b\r\nx-request-id: %b\r\ncontent-length: %d\r\n"
        b"accept-encoding: identity\r\n"  # without the field any coding would do (section 12.5.3)
        b"%b%bvia: 1.1 warmroute\r\n\r\n"  # after the `Via` fields of earlier proxies
    ) % (
        method,
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
    """Return the fields that `Connection` lists, in lower case; None if it lists none."""
    named: frozenset[bytes] | None = None
    for name, value in headers:
        if name == b"connection" and value.lower() not in {b"keep-alive", b"close"}:
            tokens = frozenset(token.strip().lower() for token in value.split(b","))
            named = tokens | (named or frozenset())
    return named


class Stripped:
    """The same request without one header field."""

    __slots__ = ("_line", "_request", "identity", "query")

    def __init__(self, request: Incoming, line: bytes) -> None:
        """`line` is the start of the field: a line end, its name in lower case, and a colon."""
        self.query, self.identity = request.query, request.identity
        self._request = request
        self._line = line

    def passing(self, *, keyed: bool) -> bytes:
        """Return the header lines that are passed on to a worker."""
        lines = b"\n" + self._request.passing(keyed=keyed)
        while (start := lines.find(self._line)) >= 0:
            lines = lines[:start] + lines[lines.index(b"\n", start + 1) :]
        return lines[1:]


class Numbered:
    """The same request with a number at the end of its id, as it is sent once more.

    vLLM before 0.14 uses the id from the client as its own key. It may not have forgotten the first
    request yet when the second one arrives, and would abort that one in its place
    (`v1/engine/output_processor.py`, `add_request`).
    """

    __slots__ = ("_request", "identity", "query")

    def __init__(self, request: Incoming, number: int) -> None:
        """`number` is how often it was sent before."""
        self.query, self.identity = request.query, b"%b-%d" % (request.identity, number)
        self._request = request

    def passing(self, *, keyed: bool) -> bytes:
        """Return the header lines that are passed on to a worker."""
        return self._request.passing(keyed=keyed)
