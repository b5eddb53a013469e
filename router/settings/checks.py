"""Checks of settings that contradict each other, or that leave an address open by accident.

Sessions are checked against strategies, workers and the environment; addresses that others can
reach must say who may come in. All checks work on the raw values, so that contradictions are
reported together with other mistakes and not one correction later. A value that cannot be read is
skipped: its field's own check reports it.
"""

from collections.abc import Iterator, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, NamedTuple

from pydantic_core import InitErrorDetails

from controller.events.source import binds
from router.runtime.quote import shown
from router.settings.errors import KeyPath, dotted, refusal
from router.settings.fleet import EjectionSettings
from router.settings.sessions import ttl_of_environment
from router.settings.types import Address, format_duration, is_endpoint, parse_duration, url_address

LISTEN: Final = Address("127.0.0.1", 8080)
"""Where clients connect to if the settings do not say."""
#: Strategies without costs, which cannot say how much sooner another worker would answer.
_COSTLESS = frozenset(("roundrobin", "chbl"))


class _Worker(NamedTuple):
    path: KeyPath
    given: object
    """A URL, or a mapping or model."""
    url: object
    address: str | None
    """Host and port in lower case; None if the URL cannot be read."""
    name: str | None
    """The given name, or else the address."""

    def get(self, key: str) -> object:
        """Return another setting of it."""
        return _get(self.given, key)


def contradictions(given: Mapping[str, object]) -> Iterator[InitErrorDetails]:
    """Find everything that contradicts something else."""
    if "workers" in given and "pools" in given:
        yield refusal(("pools",), 'cannot stand beside "workers": give one of the two')
    if "workers" not in given and "pools" not in given:
        yield refusal((), 'no workers: give "workers" or "pools"')
    pools = list(_items(given, "pools"))
    workers = [*_workers(given, ())]
    workers += [worker for path, pool in pools for worker in _workers(pool, path)]
    yield from _repeated_workers(workers)
    yield from _repeated_pools(pools)
    for worker in workers:
        yield from _worker_tls(worker)
        yield from _worker_events(worker)
    yield from _repeated_engines(workers)
    yield from _ejection(_get(_get(given, "health"), "ejection"))
    yield from _origins(_get(given, "cors"))
    yield from _signatures(given)
    yield from _repeated_endpoints(_get(given, "sagemaker"))
    yield from _sessions(given)
    for path, message in exposures(given):
        yield refusal(path, message)


def exposures(given: Mapping[str, object]) -> Iterator[tuple[KeyPath, str]]:
    """Find addresses that others can reach without keys, and one address given twice.

    Yields the path and the message of each.
    """
    listen = _address(given.get("listen"))
    admin = _address(_get(given.get("admin"), "listen"))
    closed = given.get("auth") is not None  # its content is checked elsewhere
    if listen and not listen.is_loopback and not closed:
        yield (
            ("listen",),
            f"{listen} can be reached from other machines, and nothing says who may come in:"
            " give auth: {keys: [...]}, or write auth: none to let everyone in",
        )
    if admin and not admin.is_loopback and not closed and not _get(given.get("admin"), "keys"):
        yield (
            ("admin", "listen"),
            f"{admin} can be reached from other machines, and nothing says who may come in:"
            " give admin: {keys: [...]} or auth: {keys: [...]},"
            " or write auth: none to let everyone in",
        )
    door = LISTEN if given.get("listen") is None else listen
    if admin and door and _overlap(admin, door):
        which = "" if door == admin else f" ({door})"
        which = which if listen else " by default"
        yield (
            ("admin", "listen"),
            f"{admin} is already the address of listen{which}:"
            " give another port, or leave it out to serve both there",
        )


def _overlap(address: Address, other: Address) -> bool:
    """Whether only one of them can be listened on; port 0 is a different one each time."""
    if not address.port or address.port != other.port:
        return False
    hosts = {_host(address), _host(other)}
    if len(hosts) == 1 or IPv6Address(0) in hosts:  # Linux takes that for IPv4 as well
        return True
    return IPv4Address(0) in hosts and not any(isinstance(host, IPv6Address) for host in hosts)


def _host(address: Address) -> IPv4Address | IPv6Address | str:
    """Return what a socket is bound to; names lead to IPv4, and only `localhost` is resolved."""
    name = address.host.lower()
    try:
        host = ip_address("127.0.0.1" if name == "localhost" else name)
    except ValueError:
        return name
    return getattr(host, "ipv4_mapped", None) or host


def _address(value: object) -> Address | None:
    try:
        return Address.parse(value)
    except ValueError:
        return None


def _repeated_workers(workers: list[_Worker]) -> Iterator[InitErrorDetails]:
    names: dict[str, KeyPath] = {}
    addresses: dict[str, KeyPath] = {}
    for worker in workers:
        named = worker.name != worker.address
        first = addresses.setdefault(worker.address or "", worker.path)
        if worker.address and first != worker.path:
            message = f"the same address as {dotted(first)}: {worker.address}"
            if worker.path[:2] != first[:2] and worker.path[0] == "pools":
                message += "; a worker stands in one pool, and a pool may have several models"
            yield refusal((*worker.path, "url"), message)
            if not named:
                continue  # their default names are equal too: one message is enough
        first = names.setdefault(worker.name or "", worker.path)
        if worker.name and first != worker.path:
            message = f"{shown(worker.name)} is already the name of {dotted(first)}"
            message += "" if named else "; give one of them another name"
            yield refusal((*worker.path, "name"), message)


def _repeated_engines(workers: list[_Worker]) -> Iterator[InitErrorDetails]:
    """Report engine addresses used twice; many engines may connect to an address that we bind."""
    seen: dict[tuple[str, str], KeyPath] = {}
    for worker in workers:
        for key in ("kv_events", "kv_replay"):
            address = worker.get(key)
            if not is_endpoint(address) or binds(address):
                continue
            first = seen.setdefault((key, address.lower()), worker.path)
            if first != worker.path:
                message = f"the same address as that of {dotted(first)}: {address}"
                yield refusal((*worker.path, key), message)


def _repeated_pools(pools: list[tuple[KeyPath, object]]) -> Iterator[InitErrorDetails]:
    names: dict[str, KeyPath] = {}
    owners: dict[str, KeyPath] = {}
    for path, pool in pools:
        yield from _repeated(names, _get(pool, "name"), path, (*path, "name"))
        models = list(_items(pool, "models", path)) or [((*path, "models"), "*")]
        for place, model in models:
            if isinstance(model, str) and (first := owners.setdefault(model, path)) != path:
                yield refusal(place, f"{shown(model)} is already routed to {dotted(first)}")


def _repeated(
    names: dict[str, KeyPath], name: object, owner: KeyPath, place: KeyPath
) -> Iterator[InitErrorDetails]:
    """Note whose name it is, and report it at `place` if it was another owner's before."""
    if isinstance(name, str) and (first := names.setdefault(name, owner)) != owner:
        yield refusal(place, f"{shown(name)} is already the name of {dotted(first)}")


def _worker_tls(worker: _Worker) -> Iterator[InitErrorDetails]:
    if (tls := worker.get("tls")) is None:
        return
    path = (*worker.path, "tls")
    if isinstance(worker.url, str) and worker.url.startswith("http://"):
        yield refusal(path, "is of no use with http://: write https:// in the URL, or remove it")
    certificate, key = _get(tls, "certificate"), _get(tls, "key")
    if (certificate is None) != (key is None):
        missing = "certificate" if certificate is None else "key"
        yield refusal(path, f"a certificate and its key are given together: {missing} is missing")


def _worker_events(worker: _Worker) -> Iterator[InitErrorDetails]:
    replay = worker.get("kv_replay")
    if replay is not None and worker.get("kv_events") is None:
        yield refusal((*worker.path, "kv_replay"), 'is of no use without "kv_events"')
    if isinstance(replay, str) and binds(replay):
        message = f"{replay}: the router asks there: write the engine's host"
        yield refusal((*worker.path, "kv_replay"), message)


def _ejection(ejection: object) -> Iterator[InitErrorDetails]:
    defaults = EjectionSettings()
    first = _duration(_get(ejection, "first"), defaults.first)
    longest = _duration(_get(ejection, "longest"), defaults.longest)
    if first > longest:
        message = f"first ({format_duration(first)}) is longer than longest"
        yield refusal(("health", "ejection"), f"{message} ({format_duration(longest)})")


def _duration(value: object, default: float) -> float:
    """Parse a raw duration; return the default if that fails."""
    try:
        return value if isinstance(value, float) else parse_duration(value)
    except ValueError:
        return default


def _origins(cors: object) -> Iterator[InitErrorDetails]:
    if isinstance(cors, list | tuple) and "*" in cors and len(cors) > 1:
        yield refusal(("cors",), '"*" allows every origin: remove it, or the others')


def _signatures(given: Mapping[str, object]) -> Iterator[InitErrorDetails]:
    auth, sagemaker = _get(given, "auth"), _get(given, "sagemaker")
    if _get(sagemaker, "sigv4") and auth is None:
        yield refusal(
            ("sagemaker", "sigv4"),
            "opens SageMaker's paths alone, and nothing says who may use the others, such as /v1:"
            " give auth: {keys: [...]}, or write auth: none to let everyone in",
        )
    names: dict[str, KeyPath] = {}
    for path, key in _items(auth, "keys", ("auth",)):  # repeated ones are reported by `auth.keys`
        if isinstance(name := _get(key, "name"), str):
            names.setdefault(name, path)
    for path, key in _items(sagemaker, "sigv4", ("sagemaker",)):
        yield from _repeated(names, _get(key, "access_key"), path, (*path, "access_key"))


def _repeated_endpoints(sagemaker: object) -> Iterator[InitErrorDetails]:
    names: dict[str, KeyPath] = {}
    for path, endpoint in _items(sagemaker, "endpoints", ("sagemaker",)):
        if isinstance(endpoint, str):
            yield from _repeated(names, endpoint, path, path)
        else:
            yield from _repeated(names, _get(endpoint, "name"), path, (*path, "name"))


def _sessions(given: Mapping[str, object]) -> Iterator[InitErrorDetails]:
    """Find sessions that would move although their state cannot, and a `spill` with no effect."""
    session = _get(given, "session")
    if _get(session, "ttl") is None:
        try:
            ttl_of_environment()
        except ValueError as error:
            yield refusal(("session", "ttl"), str(error))
    ends = _get(session, "on_worker_lost") == "error"
    top = given.get("strategy")
    if "workers" in given:
        yield from _stateful((), (), top, _get(given, "workers"), ends=ends)
    for path, pool in _items(given, "pools"):
        own = _get(pool, "strategy")
        at = path if own is not None else ()
        yield from _stateful(path, at, own or top, _get(pool, "workers"), ends=ends)


def _stateful(
    pool: KeyPath, at: KeyPath, strategy: object, workers: object, *, ends: bool
) -> Iterator[InitErrorDetails]:
    """Check one pool; `at`: what its strategy stands in."""
    listed = workers if isinstance(workers, Sequence) and not isinstance(workers, str) else ()
    stateful = [_get(worker, "stateful") is True for worker in listed]
    if any(stateful) and not all(stateful):
        yield refusal(
            (*pool, "workers", stateful.index(False)),
            "must be stateful too: in one pool all workers keep sessions themselves, or none",
        )
    if _get(strategy, "name") != "session" or _get(strategy, "spill") in {None, "off"}:
        return
    place = (*at, "strategy", "spill")
    if any(stateful):
        yield refusal(place, "cannot be: these workers keep their sessions themselves")
    elif ends:
        yield refusal(
            place,
            "cannot be with session.on_worker_lost: error, where a session has but one worker",
        )
    over = _get(strategy, "over")
    below = _get(over, "name") if isinstance(over, Mapping) else over
    if below in _COSTLESS:
        yield refusal(place, f"is of no use over {below}, which does not compare what workers cost")


def _workers(owner: object, pool: KeyPath) -> Iterator[_Worker]:
    for path, worker in _items(owner, "workers", pool):
        url = worker if isinstance(worker, str) else _get(worker, "url")
        name = _get(worker, "name")
        try:
            address = str(url_address(url)).lower()
        except ValueError:
            address = None
        yield _Worker(path, worker, url, address, name if isinstance(name, str) else address)


def _items(owner: object, key: str, path: KeyPath = ()) -> Iterator[tuple[KeyPath, object]]:
    values = _get(owner, key)
    if isinstance(values, Sequence) and not isinstance(values, str):
        for number, value in enumerate(values):
            yield (*path, key, number), value


def _get(owner: object, key: str) -> object:
    """Return a setting of a raw mapping, or of a model."""
    return owner.get(key) if isinstance(owner, Mapping) else getattr(owner, key, None)
