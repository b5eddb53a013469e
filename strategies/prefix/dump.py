"""A prefix tree as bytes, and back: what a router leaves for the process that starts after it.

The format is msgpack: the runs, parents first, and for each worker what it holds of them, in order
of eviction. It contains keys only, no text. What workers have lost meanwhile shows as usual, by the
cached tokens that they report.
"""

from array import array
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from strategies.api import TOKEN_ENDS
from strategies.prefix.block_keys import TEXT_ENDS
from strategies.prefix.lru import Shadow
from strategies.prefix.node import Node
from strategies.prefix.tree import BLOCKS, PrefixTree

#: Has to change with the format, and with the way keys are computed.
VERSION = 2
#: The known sequences of block ends; a run is written with its index in this tuple.
_ENDS: tuple[Sequence[int], ...] = (TEXT_ENDS, TOKEN_ENDS, BLOCKS)
#: Most tokens that can be cached after the last block: a partial block and an answer.
_MOST_EXTRA = 1 << 30


class BadDump(ValueError):
    """These bytes are not a prefix tree of this version."""


class _Run(msgspec.Struct, array_like=True):
    parent: int
    """Index of its parent among the runs; -1 for the root."""
    keys: bytes
    ends: int
    unit: float


class _Held(msgspec.Struct, array_like=True):
    run: int
    blocks: int
    extra: float
    stamp: int


class _Worker(msgspec.Struct, array_like=True):
    name: str
    limit: float
    held: list[_Held]
    """In order of eviction, first to go first."""


class _Dump(msgspec.Struct):
    version: int
    runs: list[_Run]
    workers: list[_Worker]


def dump(tree: PrefixTree) -> bytes:
    """Return which worker holds what, as bytes."""
    runs: list[_Run] = []
    places: dict[Node, int] = {}
    open_ = [(node, -1) for node in tree.root.children.values()]
    while open_:
        node, parent = open_.pop()
        kind = next((kind for kind, ends in enumerate(_ENDS) if ends is node.ends), None)
        if kind is None:
            continue  # a third-party strategy cuts prompts its own way
        places[node] = len(runs)
        runs.append(_Run(parent, node.keys.tobytes(), kind, node.unit))
        open_ += [(child, places[node]) for child in node.children.values()]
    workers = [
        _Worker(
            shadow.worker,
            shadow.limit,
            [
                _Held(places[entry.node], entry.held, entry.extra, entry.stamp)
                for entry in shadow
                if entry.node in places
            ],
        )
        for shadow in tree.shadows()
    ]
    return msgspec.msgpack.encode(_Dump(VERSION, runs, workers))


def restore(tree: PrefixTree, data: bytes) -> None:
    """Fill an empty tree, up to its memory bound. If it raises BadDump, the tree stays empty."""
    try:
        found = msgspec.msgpack.decode(data, type=_Dump)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise BadDump(f"not a prefix tree: {error}") from None
    if found.version != VERSION:
        raise BadDump(f"a prefix tree of version {found.version}, not {VERSION}")
    try:
        nodes = _nodes(tree.root, found.runs)
        if len({worker.name for worker in found.workers}) < len(found.workers):
            raise ValueError("a worker that is there twice")
        for worker in found.workers:
            _hold(tree.join(worker.name), worker, nodes)
    except (ValueError, IndexError, OverflowError) as error:
        tree.clear()
        raise BadDump(f"not a prefix tree: {error}") from None
    for node in reversed(nodes):
        if not node.mask:
            node.leave()
    tree.shrink()


def _nodes(root: Node, runs: Sequence[_Run]) -> list[Node]:
    """Build the runs below the root. Raises ValueError, IndexError, OverflowError."""
    nodes: list[Node] = []
    for number, run in enumerate(runs):
        if not -1 <= run.parent < number:
            raise ValueError("a run before its parent")
        parent = nodes[run.parent] if run.parent >= 0 else root
        keys = array("Q", run.keys)
        at = parent.at + len(parent.keys)
        ends = _ENDS[run.ends] if run.ends >= 0 else ()
        if not keys or keys[0] in parent.children or not 0.0 < run.unit <= 1.0:
            raise ValueError("a run without blocks, or that is there twice")
        ends[at + len(keys)]  # raises IndexError if there are not that many ends
        node = parent.children[keys[0]] = Node(parent, keys, at, ends, run.unit)
        nodes.append(node)
    return nodes


def _hold(shadow: Shadow, worker: _Worker, nodes: Sequence[Node]) -> None:
    """Fill one worker's shadow. Raises ValueError, IndexError."""
    if not worker.limit >= 0.0:
        raise ValueError("a worker of an odd size")
    shadow.limit = worker.limit
    if any(before.stamp > after.stamp for before, after in pairwise(worker.held)):
        raise ValueError("prefixes in no order")
    for held in _connected(worker.held, nodes):
        node = nodes[held.run]
        if shadow.bit & node.mask:
            raise ValueError("blocks that are held twice")
        entry = shadow.enter(node)
        shadow.hold(entry, held.blocks)
        shadow.add(entry, held.extra)
        shadow.clock = held.stamp
        shadow.touch(entry)


def _connected(held: Sequence[_Held], nodes: Sequence[Node]) -> list[_Held]:
    """Leave out ends without their beginning, or that would be forgotten after it.

    The rest is of use without them. Raises ValueError, IndexError.
    """
    found: list[_Held] = []
    whole: set[Node] = set()
    for one in reversed(held):
        node = nodes[one.run] if one.run >= 0 else None
        if node is None or not 0 < one.blocks <= len(node.keys):
            raise ValueError("blocks outside of their run")
        if not 0.0 <= one.extra <= _MOST_EXTRA or one.stamp < 0:
            raise ValueError("an answer of an odd length")
        above = node.parent
        if above in whole or (above is not None and above.parent is None):
            found.append(one)
            if one.blocks == len(node.keys):
                whole.add(node)
    return found[::-1]
