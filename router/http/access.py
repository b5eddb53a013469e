"""Who may send what: the rules of one listening socket. Pure.

Paths: every path that is served has a rule. A path without one does not exist, however it is
spelled: it is never passed on to code that might read it differently.

Keys identify the sender. They are compared as SHA-256 digests, each in constant time, and all of
them even after a match, so that the response time reveals nothing about a key.

CORS says which web pages may read answers (fetch.spec.whatwg.org). Keys travel in header fields,
never in cookies, so no page ever gets a visitor's credentials.

Foreign pages: a browser sends whatever a page tells it to, even to addresses that only its own
machine can reach. If the page's name is made to resolve to such an address, the page can read the
answers too (DNS rebinding). But on every request that could have an effect, the browser names the
page in `Origin` (fetch.spec.whatwg.org, "origin header"). A GET may lack it; clients other than
browsers send none.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from hashlib import sha256
from hmac import compare_digest
from ipaddress import ip_address
from typing import NamedTuple, Protocol

from router.api.endpoints import OPEN_PATHS
from router.api.errors import ForeignPage, Headers, UnknownPath, WrongKey, WrongMethod
from router.http.exchange import Exchange
from router.http.headers import header

#: Headers that hold a key and nothing else: Anthropic's clients send the first, Azure's the other.
_BARE_KEY_FIELDS = (b"x-api-key", b"api-key")


class Keys:
    """The keys that open one door."""

    __slots__ = ("_digests",)

    def __init__(self, named: Iterable[tuple[str, str]]) -> None:
        """Take keys, each after its name in metrics and logs; only their digests are kept.

        Of several names of one key the last counts.
        """
        self._digests = [(name, sha256(key.encode()).digest()) for name, key in named]

    def identify(self, headers: Iterable[tuple[bytes, bytes]]) -> str | None:
        """Return the name of the key in a request, or None if it is not let in.

        A request may carry its key several times, but only one key: other software that reads the
        request might look at the other one.
        """
        credential = _credentials(headers)
        if credential is None:
            return None
        digest, owner = sha256(credential).digest(), None
        for name, known in self._digests:
            if compare_digest(digest, known):
                owner = name
        return owner


def _credentials(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """Return the one credential of a request, or None if there is none or more than one."""
    keys = set[bytes]()
    for name, value in headers:
        header = name.lower()
        if header == b"authorization":
            keys.add(_bearer(value.strip(b" \t")))
        elif header in _BARE_KEY_FIELDS:
            keys.add(value.strip(b" \t"))
    return (keys.pop() or None) if len(keys) == 1 else None


def _bearer(value: bytes) -> bytes:
    """`Bearer abc` → abc, whatever the case of the scheme (RFC 9110, section 11.1)."""
    scheme, _, token = value.partition(b" ")
    return token.lstrip(b" ") if scheme.lower() == b"bearer" else b""


#: Seconds for which a browser may cache a preflight; the lowest cap among browsers.
PREFLIGHT_MAX_AGE_S = 600
#: Header fields of an answer that a page may read, besides those it always may.
_EXPOSED = (
    b"x-request-id, x-warmroute-worker, x-warmroute-decision, x-warmroute-reason, x-warmroute-cost,"
    b" x-warmroute-preempted, retry-after, x-warmroute-session, x-amzn-sagemaker-new-session-id,"
    b" x-amzn-sagemaker-closed-session-id"
)
#: A list of field names (RFC 9110 section 5.6.2) that is safe to send back.
_NAMES = re.compile(rb"[A-Za-z0-9!#$%&'*+.^_`|~, \t-]{1,4096}")


class Cors:
    """Makes CORS header fields for the pages of some origins, or of all."""

    def __init__(self, origins: Collection[str]) -> None:
        self._all = "*" in origins
        self._allowed = {origin.encode(): _answer(origin) for origin in origins}

    def allows(self, origin: bytes) -> bool:
        """Whether pages of this origin are allowed."""
        return self._all or origin in self._allowed

    def answer(self, headers: Headers) -> bytes:
        """Return the header lines for an answer that is not to a preflight; errors included."""
        if self._all:
            return self._allowed[b"*"]
        # `Vary`, so that no cache serves one origin's answer to another (RFC 9110 section 12.5.5).
        return self._allowed.get(header(headers, b"origin"), b"vary: origin\r\n")

    def preflight(self, headers: Headers, method: str) -> bytes | None:
        """Return the header lines that permit a request by `method`.

        None if the request is not a preflight, or its origin is not allowed.
        """
        origin = header(headers, b"origin")
        if not origin or not header(headers, b"access-control-request-method"):
            return None
        if self._all:
            origin = b"*"
        elif origin not in self._allowed:
            return None
        lines = [
            b"access-control-allow-origin: %b\r\n" % origin,
            b"access-control-allow-methods: %b\r\n" % method.encode(),
            b"access-control-max-age: %d\r\n" % PREFLIGHT_MAX_AGE_S,
            b"vary: origin\r\n",
        ]
        names = header(headers, b"access-control-request-headers")
        if _NAMES.fullmatch(names):  # repeated, as `*` would not include Authorization
            lines.append(b"access-control-allow-headers: %b\r\n" % names)
        return b"".join(lines)


def _answer(origin: str) -> bytes:
    vary = b"" if origin == "*" else b"vary: origin\r\n"
    return b"access-control-allow-origin: %b\r\naccess-control-expose-headers: %b\r\n%b" % (
        origin.encode(),
        _EXPOSED,
        vary,
    )


#: Installed applications have their own schemes (`app://`, `tauri://`), which no web page can use.
_APPLICATION = re.compile(rb"(?!https?:)[a-z][a-z0-9+.-]*://[^,]*")
_WEB = re.compile(rb"https?://(?:\[([^\]]+)\]|([^:/]*))(?::[0-9]*)?")
_NAMED_HOST = re.compile(rb"(?:\[([^\]]*)\]|([^:]*))(?::[0-9]*)?")


@lru_cache(maxsize=256)
def is_foreign(origin: bytes, host: bytes) -> bool:
    """Whether `origin` is neither this machine nor the address in `host`, the request's Host.

    They match only if both are the same IP address, because any name can be made to resolve to this
    router. `null`, the origin of a sandboxed frame, is foreign.
    """
    page = _WEB.fullmatch(origin.lower())
    if page is None:
        return _APPLICATION.fullmatch(origin.lower()) is None
    name = page[1] or page[2]
    if name == b"localhost" or name.endswith(b".localhost"):  # RFC 6761 section 6.3
        return False
    try:
        address = ip_address(name.decode())
    except ValueError:
        return True
    target = _NAMED_HOST.fullmatch(host.lower())
    return not (address.is_loopback or (target is not None and name == (target[1] or target[2])))


class KeyCheck(Protocol):
    """Identifies the sender of a request."""

    def identify(self, headers: Headers) -> str | None:
        """Return the name of the key in a request, or None if it is not let in."""


class PathRule(NamedTuple):
    """The rules for requests to one path."""

    keys: KeyCheck | None
    """The keys that open it; None: no key is needed."""
    method: str | None
    """The methods allowed, as `Allow` lists them; None: the code that serves the path checks it."""
    max_body: int
    """Size limit of the body in bytes; below 0: the path does not exist."""
    pages: bool = False
    """It is for clients, which includes web pages that `cors` allows."""


class AccessRules:
    """The rules of one listening socket. `admit` is the hot path."""

    def __init__(
        self,
        paths: Mapping[str, PathRule],
        others: Callable[[str], PathRule | None],
        unknown: Keys | None,
        cors: Cors | None = None,
        *,
        salts: Mapping[str, str] | None = None,
        steering: Collection[str] = (),
    ) -> None:
        """`others` gives the rules of variable paths, `unknown` the keys that entitle to a 404.

        `salts` are the cache salts of keys by name. `steering` are the names of keys that may send
        what steers engines.
        """
        self._paths = dict(paths)
        self._others = others
        self._unknown = PathRule(unknown, None, -1)
        self._salts = dict(salts or {})
        self._steering = frozenset(steering)
        self._cors = cors

    def admit(self, exchange: Exchange) -> int:
        """Check a request; return the size limit of its body. Raises APIError."""
        path = exchange.path
        rule = self._paths.get(path) or self._others(path) or self._unknown
        keys, method, max_body, pages = rule
        if pages and self._cors is not None:
            if exchange.method == "OPTIONS":
                permission = self._cors.preflight(exchange.headers, method or "")
                if permission is not None:  # browsers send no key with a preflight
                    exchange.add(permission)
                    return 0
            exchange.add(self._cors.answer(exchange.headers))
        if keys is not None:
            name = keys.identify(exchange.headers)
            if name is None:
                raise WrongKey
            exchange.tenant, exchange.salt = name, self._salts.get(name, "")
            exchange.trusted = exchange.steers = name in self._steering
        sent = exchange.method
        if method is not None and sent != method and sent not in method.split(", "):
            raise WrongMethod(sent, method)
        if max_body < 0:
            raise UnknownPath(path, self._meant(path))
        if keys is None and exchange.head.origin and path not in OPEN_PATHS:
            self._check_page(exchange, rule)
        exchange.max_body = max_body
        return max_body

    def _check_page(self, exchange: Exchange, rule: PathRule) -> None:
        """Refuse web pages of other origins where no key is needed. Raises ForeignPage.

        Otherwise any page could make its visitor's browser send requests.
        """
        origin = exchange.head.origin
        if self._cors is not None and rule.pages and self._cors.allows(origin):
            return
        if is_foreign(origin, header(exchange.headers, b"host")):
            raise ForeignPage(origin.decode("latin-1"))

    def _meant(self, path: str) -> str:
        """Return a path that is served and differs by `/v1` or a final slash, or nothing.

        A client's base URL often lacks the one, or has it twice.
        """
        path = path.rstrip("/")
        likely = (path, "/v1" + path, path.removeprefix("/v1"))
        return next((known for known in likely if known in self._paths), "")
