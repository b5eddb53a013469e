"""A naive index, with sets of whole prefixes, that the real one is compared with."""

from collections import Counter

from controller.index.block_events import BlockRemoved, BlockStored, Mark, Tier
from controller.index.index import Index
from controller.index.snapshot import copy_index, decode_snapshot, encode_snapshot
from strategies.prefix.block_keys import even_chain, even_root

SIZE = 4


class Naive:
    """Who holds which prefix, by the tokens themselves."""

    def __init__(self) -> None:
        self.held: dict[tuple[str, Tier], Counter[tuple[str, tuple[int, ...]]]] = {}
        self.names: dict[tuple[str, Tier], dict[int, tuple[str, tuple[int, ...]]]] = {}
        self.orphans: dict[str, list[tuple[BlockStored, list[int]]]] = {}
        self.since: dict[str, set[int]] = {}
        """Names of blocks stored on L1 since the GPU was cleared."""

    def prefix(self, worker: str, name: int) -> tuple[str, tuple[int, ...]] | None:
        """Return the prefix that an engine's name stands for, on any tier."""
        for tier in Tier:
            found = self.names.get((worker, tier), {}).get(name)
            if found is not None:
                return found
        return None

    def store(self, worker: str, event: BlockStored) -> None:
        """Do what `Index.store` does."""
        self.orphans.setdefault(worker, []).append((event, []))
        moved = True
        while moved:
            moved = False
            for one in list(self.orphans[worker]):
                if self._store(worker, *one):
                    self.orphans[worker].remove(one)
                    moved = True
                    break

    def _store(self, worker: str, event: BlockStored, gone: list[int]) -> bool:
        where = (worker, event.tier)
        held, names = self.held.setdefault(where, Counter()), self.names.setdefault(where, {})
        above: tuple[str, tuple[int, ...]]
        since = self.since.get(worker) if event.tier is Tier.L1 else None
        if since is not None and all(n in names and n not in since for n in event.hashes):
            self._lose(worker, since)
            since = None
        known = self.prefix(worker, event.hashes[0]) if event.tier is not Tier.GPU else None
        if known is not None:
            above = (known[0], known[1][:-SIZE])
        elif event.parent is None:
            above = (event.adapter, ())
        else:
            found = self.prefix(worker, event.parent)
            if found is None:
                return False
            above = found
        salt, tokens = above
        ids = memoryview(event.tokens).cast("I").tolist()
        ends = range(SIZE, len(ids) + 1, SIZE)
        told = [(salt, (*tokens, *ids[:end])) for end in ends]
        names.update(zip(event.hashes, told, strict=True))
        if event.tier is not Tier.GPU or not all(held[prefix] for prefix in told):
            held.update(told)
        if since is not None:
            since.update(event.hashes)
        if gone:
            self.remove(worker, BlockRemoved(gone, event.tier, False, None))
        return True

    def _lose(self, worker: str, since: set[int]) -> None:
        """Drop older blocks of L1: it was emptied with the GPU, which was not announced."""
        del self.since[worker]
        held, names = self.held[worker, Tier.L1], self.names[worker, Tier.L1]
        for name, prefix in list(names.items()):
            if name in since:
                held[prefix] = 1
            else:
                del held[prefix], names[name]

    def remove(self, worker: str, event: BlockRemoved) -> None:
        """Do what `Index.remove` does."""
        where = (worker, event.tier)
        held, names = self.held.setdefault(where, Counter()), self.names.setdefault(where, {})
        if event.tier is Tier.L1:
            self.since.get(worker, set()).difference_update(event.hashes)
        for name in event.hashes:
            prefix = names.get(name)
            if prefix is None:
                waiting = [
                    gone
                    for orphan, gone in self.orphans.get(worker, [])
                    if orphan.tier is event.tier and orphan.hashes.count(name) > gone.count(name)
                ]
                if waiting:
                    waiting[0].append(name)
                continue
            held[prefix] -= 1
            if not held[prefix]:
                del held[prefix], names[name]

    def clear(self, worker: str, tier: Tier) -> None:
        """Do what `Index.clear` does."""
        self.held.pop((worker, tier), None)
        self.names.pop((worker, tier), None)
        waiting = self.orphans.get(worker, [])
        self.orphans[worker] = [one for one in waiting if one[0].tier is not tier]
        self.since.pop(worker, None)
        if tier is Tier.GPU:
            self.since[worker] = set()

    def forget(self, worker: str) -> None:
        """Do what `Index.forget` does."""
        for tier in Tier:
            self.held.pop((worker, tier), None)
            self.names.pop((worker, tier), None)
        self.orphans.pop(worker, None)
        self.since.pop(worker, None)

    def depths(self, salt: str, tokens: tuple[int, ...]) -> dict[tuple[str, Tier], int]:
        """Return how many blocks each place holds from the first on."""
        found = {}
        for where, held in self.held.items():
            depth = self.reach(where, salt, tokens, 0)
            if depth and held:
                found[where] = depth
        return found

    def reach(self, where: tuple[str, Tier], salt: str, tokens: tuple[int, ...], start: int) -> int:
        """Return up to which block a place holds everything from block `start` on."""
        held = self.held.get(where, Counter())
        while (start + 1) * SIZE <= len(tokens) and held[salt, tokens[: (start + 1) * SIZE]]:
            start += 1
        return start


def depths(index: Index, salt: str, ids: bytes) -> dict[tuple[str, Tier], int]:
    """Return what the real index answers, by place."""
    found = index.find(even_chain(even_root(salt, ""), ids, SIZE))
    places = [(index.cache_of(bit), depth) for bit, depth in found.depths.items()]
    return {(place.worker, place.tier): depth for place, depth in places}


def dump(index: Index, marks: dict[str, Mark]) -> bytes:
    """Write an index, with the position of each engine's stream."""
    return encode_snapshot(copy_index(index.holdings, marks))


def restore(index: Index, data: bytes) -> dict[str, Mark]:
    """Fill an empty index; return the position of each stream. Raises BadSnapshot."""
    holdings, marks = decode_snapshot(data)
    index.adopt(holdings)
    return marks
