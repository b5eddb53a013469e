"""Access rules of one listening socket, checked against the head of a request.

Every path that is served is in one table. A path that is not in it does not exist, however it is
spelled: it is never passed on to code that might read it differently.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from router.admin.explain import PATH as EXPLAIN
from router.api.errors import ForeignPage, Headers, UnknownPath, WrongKey, WrongMethod
from router.api.request import ENDPOINTS
from router.http.connection import PROBES
from router.http.cors import Cors
from router.http.exchange import Exchange
from router.http.headers import header
from router.http.keys import Keys
from router.http.pages import is_foreign
from router.prompt.salts import Salts
from router.responses.ids import stored
from router.sagemaker.paths import Operation, route
from router.sagemaker.sigv4 import Signed
from router.settings.model import KeySettings, Settings

#: Served on every listener without a key, as probes have none. `*` is the target of `OPTIONS *`.
OPEN = PROBES | {"*"}
MODELS = "/v1/models"
#: Prefix of the path of a single model.
MODEL = MODELS + "/"
SESSIONS = "/sessions"
SESSION = SESSIONS + "/"
#: Size limit in bytes of a body on paths that take no prompt.
SMALL_BODY = 64 << 10


def for_clients(path: str) -> bool:
    """Whether the path is for clients, which includes web pages that `cors` allows."""
    return path in ENDPOINTS or path == MODELS or path.startswith(MODEL) or bool(stored(path))


class Who(Protocol):
    """Identifies the sender of a request."""

    def who(self, headers: Headers) -> str | None:
        """Return the name of the key in a request, or None if it is not let in."""


class Place(NamedTuple):
    """The rules for requests to one path."""

    keys: Who | None
    """The keys that open it; None: no key is needed."""
    method: str | None
    """The methods allowed, as `Allow` lists them; None: the code that serves the path checks it."""
    longest: int
    """Size limit of the body in bytes; below 0: the path does not exist."""


class Gate:
    """The rules of one listening socket. `admit` is the hot path."""

    def __init__(
        self,
        places: Mapping[str, Place],
        elsewhere: Keys | None,
        cors: Cors | None = None,
        further: Callable[[str], Place | None] | None = None,
        salts: Salts | None = None,
        *,
        steering: Collection[str] = (),
    ) -> None:
        """`further` gives the rules of variable paths; `salts` are the cache salts of all keys.

        `steering` are the names of keys that may send what steers engines.
        """
        self._further = further
        self._salts = salts
        self._steering = frozenset(steering)
        self._places = dict(places)
        self._elsewhere = Place(elsewhere, None, -1)
        self._cors = cors
        self.admit: Callable[[Exchange], int] = self._judge if cors is None else self._for_pages
        """Check a request; return the size limit of its body. Raises DoorError."""

    def _judge(self, exchange: Exchange) -> int:
        place = self._places.get(exchange.path)
        keys, method, longest = place or self._place(exchange.path)
        if keys is not None:
            name = keys.who(exchange.headers)
            if name is None:
                raise WrongKey
            exchange.tenant, exchange.salts = name, self._salts
            exchange.trusted = exchange.steers = name in self._steering
        sent = exchange.method
        if method is not None and sent != method and sent not in method.split(", "):
            raise WrongMethod(sent, method)
        if longest < 0:
            raise UnknownPath(exchange.path, self._meant(exchange.path))
        if keys is None and exchange.head.origin and exchange.path not in OPEN:
            self._judge_page(exchange)
        exchange.longest = longest
        return longest

    def _judge_page(self, exchange: Exchange) -> None:
        """Refuse web pages of other origins where no key is needed. Raises ForeignPage.

        Otherwise any page could make its visitor's browser send requests.
        """
        origin = exchange.head.origin
        if self._cors is not None and for_clients(exchange.path) and self._cors.lets(origin):
            return
        if is_foreign(origin, header(exchange.headers, b"host")):
            raise ForeignPage(origin.decode("latin-1"))

    def _place(self, path: str) -> Place:
        """Return the rules for a path that is not in the table itself."""
        for list_of, one in ((MODELS, MODEL), (SESSIONS, SESSION)):
            place = self._places.get(list_of)
            if place is not None and path.startswith(one) and len(path) > len(one):
                return place
        found = self._further(path) if self._further is not None else None
        return found or self._elsewhere

    def _meant(self, path: str) -> str:
        """Return a path that is served and differs by `/v1` or a final slash, or nothing.

        A client's base URL often lacks the one, or has it twice.
        """
        path = path.rstrip("/")
        likely = (path, "/v1" + path, path.removeprefix("/v1"))
        return next((one for one in likely if one in self._places), "")

    def _for_pages(self, exchange: Exchange) -> int:
        """Check a request as `_judge`, and add CORS header fields to the answer."""
        path = exchange.path
        if self._cors is not None and for_clients(path):
            if exchange.method == "OPTIONS":
                method = (self._places.get(path) or self._place(path)).method or ""
                permission = self._cors.preflight(exchange.headers, method)
                if permission is not None:  # browsers send no key with a preflight
                    exchange.add(permission)
                    return 0
            exchange.add(self._cors.answer(exchange.headers))
        return self._judge(exchange)


def main_gate(settings: Settings, operators: Collection[str], *, apart: bool) -> Gate:
    """Make the rules of the listener for clients.

    The `operators` paths are served there too, unless `apart`: then they have their own listener.
    """
    door, admin = _keys(settings.door_keys), _keys(settings.admin_keys)
    longest = settings.limits.longest
    places = {path: Place(door, "POST", longest(form=one.form)) for path, one in ENDPOINTS.items()}
    places[MODELS] = Place(door, "GET", SMALL_BODY)
    if not apart:
        places |= dict.fromkeys(operators, Place(admin, None, SMALL_BODY))
        places[EXPLAIN] = Place(admin, "POST", settings.limits.body)
    places |= dict.fromkeys(OPEN, Place(None, None, SMALL_BODY))
    cors = Cors(settings.cors) if settings.cors else None
    further = _variable(settings, door)
    salts, steering = Salts(settings), settings.steering
    return Gate(places, _either(settings), cors, further, salts, steering=steering)


def admin_gate(settings: Settings, operators: Collection[str]) -> Gate:
    """Make the rules of the operators' own listener."""
    keys = _keys(settings.admin_keys)
    places = dict.fromkeys(operators, Place(keys, None, SMALL_BODY))
    places[EXPLAIN] = Place(keys, "POST", settings.limits.body)
    places |= dict.fromkeys(OPEN, Place(None, None, SMALL_BODY))
    return Gate(places, keys)


def _variable(settings: Settings, door: Keys | None) -> Callable[[str], Place | None]:
    """Return a function that gives the rules of SageMaker's paths and those of responses."""
    told = settings.sagemaker
    who: Who | None = Signed(told.sigv4, door) if told.sigv4 else door
    invocation = Place(who, "POST", told.body)
    openai = Place(who, "POST", settings.limits.longest(form=False))
    form = Place(who, "POST", settings.limits.longest(form=True))
    models = Place(who, "GET", SMALL_BODY)

    def place(path: str) -> Place | None:
        if (one := stored(path)) is not None:
            return Place(door, one.methods, SMALL_BODY)
        found = route(path, told.prefix or "")
        if found is None:
            return None
        if found.operation is not Operation.OPENAI:
            return invocation
        if (one := stored(found.path)) is not None:
            return Place(who, one.methods, SMALL_BODY)
        if found.path == MODELS or found.path.startswith(MODEL):
            return models
        endpoint = ENDPOINTS.get(found.path)
        return form if endpoint is not None and endpoint.form else openai

    return place


def _keys(keys: Sequence[KeySettings]) -> Keys | None:
    return Keys((key.name, key.key.get_secret_value()) for key in keys) if keys else None


def _either(settings: Settings) -> Keys | None:
    """Return the keys of clients and operators: any of them entitles to a 404.

    None if clients need no key. A key of both has the name that it has as a client's.
    """
    return _keys((*settings.admin.keys, *settings.door_keys)) if settings.door_keys else None
