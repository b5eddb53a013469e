"""A prefix tree as bytes, and back: what a router leaves for the process that starts after it.

The format is msgpack: the runs, parents first, and for each worker what it holds of them, in order
of eviction. It contains keys only, no text. What workers have lost meanwhile shows as usual, by the
cached tokens that they report.
"""

from array import array
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated

import msgspec
from msgspec import Meta

from strategies.api import TOKEN_ENDS
from strategies.prefix.block_keys import TEXT_ENDS
from strategies.prefix.lru import Node, Shadow
from strategies.prefix.tree import BLOCKS, PrefixTree

#: Has to change with the format, and with the way keys are computed.
VERSION = 2
#: The known sequences of block ends; a run is written with its index in this tuple.
_ENDS: tuple[Sequence[int], ...] = (TEXT_ENDS, TOKEN_ENDS, BLOCKS)
#: Most tokens that can be cached after the last block: a partial block and an answer.
_MAX_EXTRA_TOKENS = 1 << 30


class BadDump(ValueError):
    """These bytes are not a prefix tree of this version."""


class _DumpedRun(msgspec.Struct, array_like=True):
    parent: int
    """Index of its parent among the runs; -1 for the root."""
    keys: Annotated[bytes, Meta(min_length=8)]
    ends: Annotated[int, Meta(ge=0, lt=len(_ENDS))]
    unit: Annotated[float, Meta(gt=0.0, le=1.0)]


class _Held(msgspec.Struct, array_like=True):
    run: int
    blocks: Annotated[int, Meta(ge=1)]
    extra: Annotated[float, Meta(ge=0.0, le=_MAX_EXTRA_TOKENS)]
    stamp: Annotated[int, Meta(ge=0)]


class _DumpedWorker(msgspec.Struct, array_like=True):
    name: str
    limit: Annotated[float, Meta(ge=0.0)]
    held: list[_Held]
    """In order of eviction, first to go first."""


class _Dump(msgspec.Struct):
    version: int
    runs: list[_DumpedRun]
    workers: list[_DumpedWorker]


def dump(tree: PrefixTree) -> bytes:
    """Return which worker holds what, as bytes."""
    runs: list[_DumpedRun] = []
    places: dict[Node, int] = {}
    open_ = [(node, -1) for node in tree.root.children.values()]
    while open_:
        node, parent = open_.pop()
        kind = next((kind for kind, ends in enumerate(_ENDS) if ends is node.ends), None)
        if kind is None:
            continue  # a third-party strategy cuts prompts its own way
        places[node] = len(runs)
        runs.append(_DumpedRun(parent, node.keys.tobytes(), kind, node.unit))
        open_ += [(child, places[node]) for child in node.children.values()]
    workers = []
    for shadow in tree.shadows():
        known = [entry for entry in shadow if entry.node in places]
        held = [_Held(places[e.node], e.held, e.extra, e.stamp) for e in known]
        workers.append(_DumpedWorker(shadow.worker, shadow.limit, held))
    return msgspec.msgpack.encode(_Dump(VERSION, runs, workers))


def restore(tree: PrefixTree, data: bytes) -> None:
    """Fill an empty tree, up to its memory bound. If it raises BadDump, the tree stays empty."""
    try:
        state = msgspec.msgpack.decode(data, type=_Dump)
        if state.version != VERSION:
            raise ValueError(f"it has version {state.version}, not {VERSION}")
        nodes = _nodes(tree.root, state.runs)
        if len({worker.name for worker in state.workers}) < len(state.workers):
            raise ValueError("a worker that is there twice")
        for worker in state.workers:
            _hold(tree.join(worker.name), worker, nodes)
    except (msgspec.MsgspecError, ValueError, LookupError, RecursionError) as error:
        tree.clear()
        raise BadDump(f"not a prefix tree of this version: {error}") from None
    for node in reversed(nodes.values()):
        node.leave()
    tree.shrink()


def _nodes(root: Node, runs: Sequence[_DumpedRun]) -> dict[int, Node]:
    """Build the runs below the root; return all by their index. Raises ValueError, LookupError."""
    nodes = {-1: root}
    for number, run in enumerate(runs):
        parent = nodes[run.parent]
        keys, ends = array("Q", run.keys), _ENDS[run.ends]
        at = parent.at + len(parent.keys)
        if keys[0] in parent.children:
            raise ValueError("a run that is there twice")
        ends[at + len(keys)]  # raises IndexError if there are not that many ends
        nodes[number] = parent.children[keys[0]] = Node(parent, keys, at, ends, run.unit)
    return nodes


def _hold(shadow: Shadow, worker: _DumpedWorker, nodes: Mapping[int, Node]) -> None:
    """Fill one worker's shadow. Raises ValueError, LookupError."""
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


def _connected(held: Sequence[_Held], nodes: Mapping[int, Node]) -> list[_Held]:
    """Leave out ends without their beginning, or that would be forgotten after it.

    The rest is of use without them. Raises ValueError, LookupError.
    """
    connected: list[_Held] = []
    whole: set[Node | None] = {nodes[-1]}
    for part in reversed(held):
        node = nodes[part.run]
        if part.blocks > len(node.keys):
            raise ValueError("blocks outside of their run")
        if node.parent in whole:
            connected.append(part)
            if part.blocks == len(node.keys):
                whole.add(node)
    return connected[::-1]
