"""Checks of settings that contradict each other.

They work on the raw values, so that contradictions are reported together with other mistakes and
not one correction later. A value that cannot be read is skipped: its field's own check reports it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from pydantic_core import InitErrorDetails

from controller.events.shared_socket import binds
from router.quoting import shown
from router.settings_errors import KeyPath, dotted, refusal
from router.settings_exposure import exposures
from router.settings_health import EjectionSettings
from router.settings_sessions_check import session_contradictions
from router.settings_types import is_endpoint, url_address
from router.units import format_duration, parse_duration


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
    yield from _ejection(_get(_get(given, "health"), "ejection"))
    yield from _origins(_get(given, "cors"))
    yield from _signatures(given)
    yield from _repeated_endpoints(_get(given, "sagemaker"))
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
        name = _get(pool, "name")
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
        certificate, key = _get(worker.tls, "certificate"), _get(worker.tls, "key")
        if (certificate is None) != (key is None):
            missing = "certificate" if certificate is None else "key"
            yield refusal(
                path, f"a certificate and its key are given together: {missing} is missing"
            )


def _ejection(ejection: object) -> Iterator[InitErrorDetails]:
    defaults = EjectionSettings()
    first = _duration(_get(ejection, "first"), defaults.first)
    longest = _duration(_get(ejection, "longest"), defaults.longest)
    if first > longest:
        message = f"first ({format_duration(first)}) is longer than longest"
        message += f" ({format_duration(longest)})"
        yield refusal(("health", "ejection"), message)


def _origins(cors: object) -> Iterator[InitErrorDetails]:
    if isinstance(cors, list | tuple) and "*" in cors and len(cors) > 1:
        yield refusal(("cors",), '"*" allows every origin: remove it, or the others')


def _signatures(given: Mapping[str, object]) -> Iterator[InitErrorDetails]:
    if _get(_get(given, "sagemaker"), "sigv4") and given.get("auth") is None:
        yield refusal(
            ("sagemaker", "sigv4"),
            "opens SageMaker's paths alone, and nothing says who may use the others, such as /v1:"
            " give auth: {keys: [...]}, or write auth: none to let everyone in",
        )
    names: dict[str, KeyPath] = {}
    for owner, listed, field in (("auth", "keys", "name"), ("sagemaker", "sigv4", "access_key")):
        for path, key in _items(_get(given, owner), listed, (owner,)):
            name = _get(key, field)
            first = names.setdefault(name, path) if isinstance(name, str) else path
            if first != path and field == "access_key":
                message = f"{shown(name)} is already the name of {dotted(first)}"
                yield refusal((*path, field), message)


def _repeated_endpoints(sagemaker: object) -> Iterator[InitErrorDetails]:
    names: dict[str, KeyPath] = {}
    for path, endpoint in _items(sagemaker, "endpoints", ("sagemaker",)):
        name = endpoint if isinstance(endpoint, str) else _get(endpoint, "name")
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
        url = worker if isinstance(worker, str) else _get(worker, "url")
        name = _get(worker, "name")
        try:
            address = str(url_address(url)).lower()
        except ValueError:
            address = None
        named = isinstance(name, str) and name != address
        name = name if isinstance(name, str) else address
        plain = isinstance(url, str) and url.startswith("http://")
        unheard = _get(worker, "kv_events") is None and _get(worker, "kv_replay") is not None
        yield _Worker(
            *(path, name, named, address, plain, _get(worker, "tls"), unheard),
            *(_get(worker, "kv_events"), _get(worker, "kv_replay")),
        )


def _items(owner: object, key: str, path: KeyPath = ()) -> Iterator[tuple[KeyPath, object]]:
    values = _get(owner, key)
    if isinstance(values, Sequence) and not isinstance(values, str):
        for number, value in enumerate(values):
            yield (*path, key, number), value


def _get(owner: object, key: str) -> object:
    return owner.get(key) if isinstance(owner, Mapping) else getattr(owner, key, None)
