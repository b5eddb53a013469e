"""Reports to operators whether engines name equal blocks alike."""

from collections.abc import Iterator

from controller.index.agreement import HashAgreement, compare_hashes, hash_algorithm
from controller.index.block_events import Tier
from controller.kv_memory import KvMemory

#: How to make engines name blocks alike.
HINT = (
    "engines that share a store must have the same PYTHONHASHSEED and --prefix-caching-hash-algo,"
    " and the same adapters by the same paths"
)


def block_names(memory: KvMemory) -> tuple[list[str], bool]:
    """Return a line per engine whose KV events are followed, and whether all is well.

    It is not if they name blocks differently although they share an L2 store.
    """
    engines = {source.name: source.worker for source in memory.all_sources()}
    found = compare_hashes(memory.index, list(engines))
    ways = {
        one.name: hash_algorithm(one.first) for one in memory.all_sources() if one.first is not None
    }
    lines = [
        f"worker {worker}: block names: {_said(engine, engines, found[engine], ways)}"
        for engine, worker in engines.items()
    ]
    alike = not any(one.others for one in found.values()) and not _differ(ways)
    return lines, alike or memory.index.cache("", Tier.L2) is None


def _differ(ways: dict[str, str]) -> bool:
    return len({one for one in ways.values() if one}) > 1


def _said(engine: str, engines: dict[str, str], one: HashAgreement, ways: dict[str, str]) -> str:
    return "; ".join(_parts(engine, engines, one, ways))


def _parts(
    engine: str, engines: dict[str, str], one: HashAgreement, ways: dict[str, str]
) -> Iterator[str]:
    """Say how an engine makes its block names, and whether other engines make the same."""
    if engine not in ways and not one.common:
        yield "not comparable, none was heard yet"
        return
    mine = ways.get(engine, "")
    yield f"by {mine}" if mine else "made in a way that is not known"
    rest = [other for other in engines if other != engine]
    if one.others:
        names = ", ".join(sorted({engines[other] for other in one.others}))
        yield f"not those of {names}, of {one.common} blocks in common ({HINT})"
    elif one.common:
        yield f"those of the others, of {one.common} blocks in common"
    elif not rest:
        yield "there is no other engine to compare with"
    elif mine and {ways.get(other) for other in rest} == {mine}:
        yield "so are those of the others; no block seen in common"
    elif mine and _differ(ways):
        yield f"others name them in another way; no block seen in common ({HINT})"
    else:
        yield "not comparable with others, no block seen in common"
