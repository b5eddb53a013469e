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
from router.settings.sessions import ttl_told
from router.settings.types import Address, format_duration, is_endpoint, parse_duration, url_address

#: Strategies without costs, which cannot say how much sooner another worker would answer.
_FREE = frozenset(("roundrobin", "chbl"))


def session_contradictions(given: Mapping[str, object]) -> Iterator[InitErrorDetails]:
    """Find sessions that would move although their state cannot, and a `spill` with no effect."""
    session = _get(given, "session")
    if _get(session, "ttl") is None:
        try:
            ttl_told()
        except ValueError as error:
            yield refusal(("session", "ttl"), str(error))
    ends = _get(session, "on_worker_lost") == "error"
    above = given.get("strategy")
    if "workers" in given:
        yield from _of_pool((), above, _get(given, "workers"), ends=ends)
    pools = given.get("pools")
    for number, pool in enumerate(pools if isinstance(pools, Sequence) else ()):
        path: KeyPath = ("pools", number)
        own = _get(pool, "strategy")
        at = path if own is not None else ()
        yield from _of_pool(at, own or above, _get(pool, "workers"), ends=ends, workers_at=path)


def _of_pool(
    path: KeyPath,
    strategy: object,
    workers: object,
    *,
    ends: bool,
    workers_at: KeyPath = (),
) -> Iterator[InitErrorDetails]:
    listed = workers if isinstance(workers, Sequence) and not isinstance(workers, str) else ()
    stateful = [_get(worker, "stateful") is True for worker in listed]
    if any(stateful) and not all(stateful):
        yield refusal(
            (*workers_at, "workers", stateful.index(False)),
            "must be stateful too: in one pool all workers keep sessions themselves, or none",
        )
    if _get(strategy, "name") != "session" or _get(strategy, "spill") in {None, "off"}:
        return
    place = (*path, "strategy", "spill")
    if any(stateful):
        yield refusal(place, "cannot be: these workers keep their sessions themselves")
    elif ends:
        yield refusal(
            place,
            "cannot be with session.on_worker_lost: error, where a session has but one worker",
        )
    over = _get(strategy, "over")
    below = _get(over, "name") if isinstance(over, Mapping) else over
    if below in _FREE:
        yield refusal(place, f"is of no use over {below}, which does not compare what workers cost")


def _get(owner: object, key: str) -> object:
    return owner.get(key) if isinstance(owner, Mapping) else getattr(owner, key, None)


LISTEN: Final = Address("127.0.0.1", 8080)
"""Where clients connect to if the settings do not say."""


class Exposure(NamedTuple):
    """One address that must not be served with these settings."""

    path: KeyPath
    message: str


def exposures(given: Mapping[str, object]) -> Iterator[Exposure]:
    """Find addresses that others can reach without keys, and one address given twice."""
    listen, admin = _address(given.get("listen")), _address(_get_exposed(given, "listen"))
    said = given.get("auth") is not None  # its content is checked elsewhere
    if listen and not listen.is_loopback and not said:
        yield Exposure(
            ("listen",),
            f"{listen} can be reached from other machines, and nothing says who may come in:"
            " give auth: {keys: [...]}, or write auth: none to let everyone in",
        )
    if admin and not admin.is_loopback and not said and not _get_exposed(given, "keys"):
        yield Exposure(
            ("admin", "listen"),
            f"{admin} can be reached from other machines, and nothing says who may come in:"
            " give admin: {keys: [...]} or auth: {keys: [...]},"
            " or write auth: none to let everyone in",
        )
    door = LISTEN if given.get("listen") is None else listen
    if admin and door and _meet(admin, door):
        which = "" if door == admin else f" ({door})"
        which = which if listen else " by default"
        yield Exposure(
            ("admin", "listen"),
            f"{admin} is already the address of listen{which}:"
            " give another port, or leave it out to serve both there",
        )


def _meet(one: Address, other: Address) -> bool:
    """Whether only one of them can be listened on; port 0 is a different one each time."""
    if not one.port or one.port != other.port:
        return False
    hosts = {_host(one), _host(other)}
    if len(hosts) == 1 or IPv6Address(0) in hosts:  # Linux takes that for IPv4 as well
        return True
    return IPv4Address(0) in hosts and not any(isinstance(host, IPv6Address) for host in hosts)


def _host(address: Address) -> IPv4Address | IPv6Address | str:
    """Return what a socket is bound to; names lead to IPv4, and only `localhost` is resolved."""
    name = address.host.lower()
    try:
        found = ip_address("127.0.0.1" if name == "localhost" else name)
    except ValueError:
        return name
    return getattr(found, "ipv4_mapped", None) or found


def _get_exposed(given: Mapping[str, object], key: str) -> object:
    admin = given.get("admin")
    return admin.get(key) if isinstance(admin, Mapping) else getattr(admin, key, None)


def _address(value: object) -> Address | None:
    try:
        return Address.parse(value)
    except ValueError:
        return None


class _Worker(NamedTuple):
    path: KeyPath
    name: str | None
    named: bool
    """A name other than the address was given."""
    address: str | None
    plain: bool
    """Its URL begins with http://."""
    tls: object
    unheard: bool = False
    """It has `kv_replay` but no `kv_events`."""
    speaks: object = None
    """Its `kv_events`."""
    replays: object = None
    """Its `kv_replay`."""


def contradictions(given: Mapping[str, object]) -> Iterator[InitErrorDetails]:
    """Find everything that contradicts something else."""
    if "workers" in given and "pools" in given:
        yield refusal(("pools",), 'cannot stand beside "workers": give one of the two')
    if "workers" not in given and "pools" not in given:
        yield refusal((), 'no workers: give "workers" or "pools"')
    pools = list(_items(given, "pools"))
    workers = list(_workers(given, ()))
    workers += [worker for path, pool in pools for worker in _workers(pool, path)]
    yield from _repeated_workers(workers)
    yield from _repeated_pools(pools)
    yield from _repeated_models(pools)
    yield from _tls(workers)
    for worker in workers:
        if worker.unheard:
            yield refusal((*worker.path, "kv_replay"), 'is of no use without "kv_events"')
        if isinstance(worker.replays, str) and binds(worker.replays):
            message = f"{worker.replays}: the router asks there: write the engine's host"
            yield refusal((*worker.path, "kv_replay"), message)
    yield from _repeated_engines(workers)
    yield from _ejection(_get_checks(_get_checks(given, "health"), "ejection"))
    yield from _origins(_get_checks(given, "cors"))
    yield from _signatures(given)
    yield from _repeated_endpoints(_get_checks(given, "sagemaker"))
    yield from session_contradictions(given)
    for found in exposures(given):
        yield refusal(found.path, found.message)


def _repeated_workers(workers: list[_Worker]) -> Iterator[InitErrorDetails]:
    names: dict[str, KeyPath] = {}
    addresses: dict[str, KeyPath] = {}
    for worker in workers:
        first = addresses.setdefault(worker.address or "", worker.path)
        if worker.address and first != worker.path:
            message = f"the same address as {dotted(first)}: {worker.address}"
            if worker.path[:2] != first[:2] and worker.path[0] == "pools":
                message += "; a worker stands in one pool, and a pool may have several models"
            yield refusal((*worker.path, "url"), message)
            if not worker.named:
                continue  # their default names are equal too: one message is enough
        first = names.setdefault(worker.name or "", worker.path)
        if worker.name and first != worker.path:
            message = f"{shown(worker.name)} is already the name of {dotted(first)}"
            message += "" if worker.named else "; give one of them another name"
            yield refusal((*worker.path, "name"), message)


def _repeated_engines(workers: list[_Worker]) -> Iterator[InitErrorDetails]:
    """Report engine addresses used twice; many engines may connect to an address that we bind."""
    seen: dict[tuple[str, str], KeyPath] = {}
    for worker in workers:
        for key, address in (("kv_events", worker.speaks), ("kv_replay", worker.replays)):
            if not is_endpoint(address) or binds(address):
                continue
            first = seen.setdefault((key, address.lower()), worker.path)
            if first != worker.path:
                message = f"the same address as that of {dotted(first)}: {address}"
                yield refusal((*worker.path, key), message)


def _repeated_pools(pools: list[tuple[KeyPath, object]]) -> Iterator[InitErrorDetails]:
    names: dict[str, KeyPath] = {}
    for path, pool in pools:
        name = _get_checks(pool, "name")
        if isinstance(name, str) and (first := names.setdefault(name, path)) != path:
            message = f"{shown(name)} is already the name of {dotted(first)}"
            yield refusal((*path, "name"), message)


def _repeated_models(pools: list[tuple[KeyPath, object]]) -> Iterator[InitErrorDetails]:
    owners: dict[str, KeyPath] = {}
    for path, pool in pools:
        models = list(_items(pool, "models", path)) or [((*path, "models"), "*")]
        for place, model in models:
            if isinstance(model, str) and (first := owners.setdefault(model, path)) != path:
                message = f"{shown(model)} is already routed to {dotted(first)}"
                yield refusal(place, message)


def _tls(workers: list[_Worker]) -> Iterator[InitErrorDetails]:
    for worker in workers:
        if worker.tls is None:
            continue
        path = (*worker.path, "tls")
        if worker.plain:
            yield refusal(
                path, "is of no use with http://: write https:// in the URL, or remove it"
            )
        certificate, key = _get_checks(worker.tls, "certificate"), _get_checks(worker.tls, "key")
        if (certificate is None) != (key is None):
            missing = "certificate" if certificate is None else "key"
            yield refusal(
                path, f"a certificate and its key are given together: {missing} is missing"
            )


def _ejection(ejection: object) -> Iterator[InitErrorDetails]:
    defaults = EjectionSettings()
    first = _duration(_get_checks(ejection, "first"), defaults.first)
    longest = _duration(_get_checks(ejection, "longest"), defaults.longest)
    if first > longest:
        message = f"first ({format_duration(first)}) is longer than longest"
        message += f" ({format_duration(longest)})"
        yield refusal(("health", "ejection"), message)


def _origins(cors: object) -> Iterator[InitErrorDetails]:
    if isinstance(cors, list | tuple) and "*" in cors and len(cors) > 1:
        yield refusal(("cors",), '"*" allows every origin: remove it, or the others')


def _signatures(given: Mapping[str, object]) -> Iterator[InitErrorDetails]:
    if _get_checks(_get_checks(given, "sagemaker"), "sigv4") and given.get("auth") is None:
        yield refusal(
            ("sagemaker", "sigv4"),
            "opens SageMaker's paths alone, and nothing says who may use the others, such as /v1:"
            " give auth: {keys: [...]}, or write auth: none to let everyone in",
        )
    names: dict[str, KeyPath] = {}
    for owner, listed, field in (("auth", "keys", "name"), ("sagemaker", "sigv4", "access_key")):
        for path, key in _items(_get_checks(given, owner), listed, (owner,)):
            name = _get_checks(key, field)
            first = names.setdefault(name, path) if isinstance(name, str) else path
            if first != path and field == "access_key":
                message = f"{shown(name)} is already the name of {dotted(first)}"
                yield refusal((*path, field), message)


def _repeated_endpoints(sagemaker: object) -> Iterator[InitErrorDetails]:
    names: dict[str, KeyPath] = {}
    for path, endpoint in _items(sagemaker, "endpoints", ("sagemaker",)):
        name = endpoint if isinstance(endpoint, str) else _get_checks(endpoint, "name")
        if isinstance(name, str) and (first := names.setdefault(name, path)) != path:
            message = f"{shown(name)} is already the name of {dotted(first)}"
            yield refusal(path if endpoint == name else (*path, "name"), message)


def _duration(value: object, default: float) -> float:
    """Parse a raw duration; return the default if that fails."""
    try:
        return value if isinstance(value, float) else parse_duration(value)
    except ValueError:
        return default


def _workers(owner: object, pool: KeyPath) -> Iterator[_Worker]:
    for path, worker in _items(owner, "workers", pool):
        url = worker if isinstance(worker, str) else _get_checks(worker, "url")
        name = _get_checks(worker, "name")
        try:
            address = str(url_address(url)).lower()
        except ValueError:
            address = None
        named = isinstance(name, str) and name != address
        name = name if isinstance(name, str) else address
        plain = isinstance(url, str) and url.startswith("http://")
        unheard = (
            _get_checks(worker, "kv_events") is None
            and _get_checks(worker, "kv_replay") is not None
        )
        yield _Worker(
            *(path, name, named, address, plain, _get_checks(worker, "tls"), unheard),
            *(_get_checks(worker, "kv_events"), _get_checks(worker, "kv_replay")),
        )


def _items(owner: object, key: str, path: KeyPath = ()) -> Iterator[tuple[KeyPath, object]]:
    values = _get_checks(owner, key)
    if isinstance(values, Sequence) and not isinstance(values, str):
        for number, value in enumerate(values):
            yield (*path, key, number), value


def _get_checks(owner: object, key: str) -> object:
    return owner.get(key) if isinstance(owner, Mapping) else getattr(owner, key, None)
