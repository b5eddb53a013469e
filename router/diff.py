"""Describes what a reload changes, for the log. Pure; secrets are compared but never shown."""

from collections.abc import Iterable, Iterator
from functools import partial

from pydantic import BaseModel

from router.settings.describe import describe
from router.settings.model import KeySettings, PoolSettings, Settings, WorkerSettings

RESTART = ("listen", "admin.listen", "tls.client_ca")
"""Settings that need a restart. A listening socket keeps its address, whether it uses TLS, and
which client certificates it asks for; the router's own certificates are read again."""
_BY_NAME = ("strategy", "tokenizer", "workers", "pools", "auth", "admin.keys")
"""Left out of the comparison by path: these are compared by name, or for each pool."""


#: The end of a sentence about a change that a reload cannot make.
WAITS = "; waits for a restart"


def changes(old: Settings, new: Settings) -> list[str]:
    """Return a sentence for everything that differs."""
    waiting = needs_restart(old, new)
    sentences = [
        f"{path}: {before} → {after}" + (WAITS if path in waiting else "")
        for path, before, after in _differences(old, new)
    ]
    sentences += _keys("auth", old.door_keys, new.door_keys, _who(old), _who(new))
    if _apart(old) != _apart(new):
        sentences.append(f"auth.separate_caches: {_apart(old)} → {_apart(new)}")
    admin = (old.admin.keys, new.admin.keys)
    sentences += _keys("admin", *admin, *("keys" if keys else "as auth" for keys in admin))
    sentences += _pools(old.all_pools(), new.all_pools())
    return sentences


def needs_restart(old: Settings, new: Settings) -> list[str]:
    """Return the changed settings that need a restart."""
    changed = [path for path, _, _ in _differences(old, new)]
    if (old.tls is None) != (new.tls is None):
        return [path for path in changed if path in RESTART or path.startswith("tls.")]
    return [path for path in changed if path in RESTART]


def _differences(
    old: BaseModel, new: BaseModel, left_out: Iterable[str] = _BY_NAME
) -> Iterator[tuple[str, str, str]]:
    """Yield path, old and new text of values that differ; all secrets have the same text."""
    before, after = ({row.path: row.value for row in describe(one)} for one in (old, new))
    for path in {**before, **after}:
        one, other = before.get(path, "none"), after.get(path, "none")
        if one != other and not any(map(partial(_is_in, path), left_out)):
            yield path, one, other


def _is_in(path: str, section: str) -> bool:
    return path == section or path.startswith((f"{section}.", f"{section}["))


def _who(settings: Settings) -> str:
    """Say who may use the inference paths, without names of keys."""
    if settings.door_keys:
        return "keys"
    return "everyone on this machine" if settings.auth is None else "none"


def _apart(settings: Settings) -> str:
    """Say whether each key has a separate cache."""
    return "true" if settings.auth is not None and settings.auth.separate_caches else "false"


def _keys(
    section: str,
    old: tuple[KeySettings, ...],
    new: tuple[KeySettings, ...],
    before: str,
    after: str,
) -> Iterator[str]:
    """Compare keys by name; also say if there were none before, or are none now."""
    if before != after:
        yield f"{section}: {before} → {after}"
    ours, theirs = ({key.name: key for key in keys} for keys in (old, new))
    for name in {**ours, **theirs}:
        if name not in theirs:
            yield f"{section}: key {name} removed"
        elif name not in ours:
            yield f"{section}: key {name} added"
        elif ours[name].key != theirs[name].key:
            yield f"{section}: key {name} changed"
        elif ours[name].engine_fields != theirs[name].engine_fields:
            trusts = "now" if theirs[name].engine_fields else "no longer"
            yield f"{section}: key {name} {trusts} may set engine fields"


def _pools(old: tuple[PoolSettings, ...], new: tuple[PoolSettings, ...]) -> Iterator[str]:
    ours, theirs = ({pool.name: pool for pool in pools} for pools in (old, new))
    for name in {**ours, **theirs}:
        if name not in theirs:
            yield f"pool {name} removed"
        elif name not in ours:
            yield f"pool {name} added"
        else:
            yield from _pool(ours[name], theirs[name])
    yield from _workers(_placed(old), _placed(new))


def _pool(old: PoolSettings, new: PoolSettings) -> Iterator[str]:
    left_out = ["workers"]
    if old.strategy.name != new.strategy.name:
        yield f"pool {new.name}: strategy: {old.strategy.name} → {new.strategy.name}"
        left_out.append("strategy")  # options of different strategies cannot be compared
    for path, before, after in _differences(old, new, left_out):
        yield f"pool {new.name}: {path}: {before} → {after}"


_Placed = dict[str, tuple[str, WorkerSettings]]


def _placed(pools: tuple[PoolSettings, ...]) -> _Placed:
    """Return every worker, and the name of its pool, by worker name."""
    return {worker.name: (pool.name, worker) for pool in pools for worker in pool.workers}


def _workers(old: _Placed, new: _Placed) -> Iterator[str]:
    for name in {**old, **new}:
        if name not in new:
            yield f"worker {name} removed from pool {old[name][0]}"
        elif name not in old:
            yield f"worker {name} added to pool {new[name][0]}"
        else:
            yield from _worker(old[name], new[name])


def _worker(old: tuple[str, WorkerSettings], new: tuple[str, WorkerSettings]) -> Iterator[str]:
    (was_in, before), (is_in, after) = old, new
    if was_in != is_in:
        yield f"worker {after.name} moved from pool {was_in} to pool {is_in}"
    for path, one, other in _differences(before, after, ()):
        yield f"worker {after.name}: {path}: {one} → {other}"
    if before.api_key and after.api_key and before.api_key != after.api_key:
        yield f"worker {after.name}: api_key changed"
