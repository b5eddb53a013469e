"""A prefix tree as bytes, and back: what a router leaves for the one that is started after it.

msgpack: the runs, parents first, and for each worker what it holds of them in the order in which
it forgets. Keys alone, no text. Workers may have lost some of it meanwhile; that is found out as it
is while a router runs, by what they report.
"""

from array import array
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from strategies.base import TOKEN_ENDS
from strategies.blocks import TEXT_ENDS
from strategies.node import Node
from strategies.prefixtree import BLOCKS, PrefixTree
from strategies.shadow import LEAST, MOST, Shadow

#: Changes with the form, and with how keys are made.
VERSION = 1
#: Where blocks may end; the place here is what is written of it.
_ENDS: tuple[Sequence[int], ...] = (TEXT_ENDS, TOKEN_ENDS, BLOCKS)
#: Tokens that may follow the last block of a prompt: an answer.
_MOST_EXTRA = 1 << 30


class BadDump(ValueError):
    """These bytes are no prefix tree of this version."""


class _Run(msgspec.Struct, array_like=True):
    parent: int
    """Its place among the runs; -1 at the root."""
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
    scale: float
    held: list[_Held]
    """What it forgets first comes first."""


class _Dump(msgspec.Struct):
    version: int
    runs: list[_Run]
    workers: list[_Worker]


def dump(tree: PrefixTree) -> bytes:
    """Write down who holds what."""
    runs: list[_Run] = []
    places: dict[Node, int] = {}
    open_ = [(node, -1) for node in tree.root.children.values()]
    while open_:
        node, parent = open_.pop()
        kind = next((kind for kind, ends in enumerate(_ENDS) if ends is node.ends), None)
        if kind is None:
            continue  # a strategy of others cuts prompts its own way
        places[node] = len(runs)
        runs.append(_Run(parent, node.keys.tobytes(), kind, node.unit))
        open_ += [(child, places[node]) for child in node.children.values()]
    workers = [
        _Worker(
            shadow.worker,
            shadow.scale,
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
    """Fill an empty tree, up to its bound. Raises BadDump, and leaves it empty then."""
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
        ends[at + len(keys)]  # there are so many
        node = parent.children[keys[0]] = Node(parent, keys, at, ends, run.unit)
        nodes.append(node)
    return nodes


def _hold(shadow: Shadow, worker: _Worker, nodes: Sequence[Node]) -> None:
    """Fill one worker's mirror. Raises ValueError, IndexError."""
    if not LEAST <= worker.scale <= MOST:
        raise ValueError("a worker of an odd size")
    shadow.scale = worker.scale
    if any(before.stamp > after.stamp for before, after in pairwise(worker.held)):
        raise ValueError("prefixes in no order")
    for held in worker.held:
        node = nodes[held.run] if held.run >= 0 else None
        if node is None or shadow.bit & node.mask or not 0 < held.blocks <= len(node.keys):
            raise ValueError("blocks outside of their run")
        if not 0.0 <= held.extra <= _MOST_EXTRA or held.stamp < 0:
            raise ValueError("an answer of an odd length")
        entry = shadow.enter(node)
        shadow.hold(entry, held.blocks)
        shadow.add(entry, held.extra)
        shadow.clock = held.stamp
        shadow.touch(entry)
        above = node.parent
        if above is not None and shadow.bit & above.mask:
            raise ValueError("a beginning that is forgotten before its end")
    for entry in shadow:
        above = entry.node.parent
        if above is None or above.parent is None:
            continue
        whole = above.entries.get(shadow.bit)
        if whole is None or whole.held < len(above.keys):
            raise ValueError("an end without its beginning")
