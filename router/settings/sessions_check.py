"""Checks session settings against those of strategies and workers, and the environment."""

from collections.abc import Iterator, Mapping, Sequence

from pydantic_core import InitErrorDetails

from router.settings.errors import KeyPath, refusal
from router.settings.sessions import ttl_told

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
