"""Prompts for a prefix tree, and what it is compared with: a trie for each worker."""

from collections.abc import Iterator

import pygtrie
import pytest
from hypothesis import strategies as st

from strategies.prefix.lru import Node
from strategies.prefix.tree import PrefixTree

Prompt = tuple[int, ...]
PROMPTS = st.lists(st.integers(0, 2), max_size=8).map(tuple)
WORKERS = st.sampled_from(["a", "b", "c"])
STEPS = st.lists(st.tuples(WORKERS, PROMPTS), max_size=40)
LARGE = 1 << 22
#: Two prompts that diverge after two blocks, and one that shares nothing with them.
ONE, OTHER, APART = (0, 1, 2, 3), (0, 1, 3, 3), (2, 2)


def keys(prompt: Prompt) -> list[int]:
    """Return the chained keys of a prompt with one symbol per block: each identifies its whole
    path."""
    return [hash(("path", prompt[: end + 1])) & (2**64 - 1) for end in range(len(prompt))]


class Reference:
    """What was sent where, with one pygtrie trie per worker; it never forgets by itself."""

    def __init__(self) -> None:
        self.tries: dict[str, pygtrie.Trie] = {}

    def insert(self, prompt: Prompt, worker: str) -> None:
        self.tries.setdefault(worker, pygtrie.Trie())[prompt] = True

    def held(self, prompt: Prompt) -> dict[str, int]:
        depths = {}
        for worker, trie in self.tries.items():
            depth = max(
                (d for d in range(1, len(prompt) + 1) if self._has(trie, prompt[:d])), default=0
            )
            if depth:
                depths[worker] = depth
        return depths

    @staticmethod
    def _has(trie: pygtrie.Trie, path: Prompt) -> bool:
        return bool(trie.has_node(path))


def nodes(node: Node) -> Iterator[Node]:
    """Iterate over all nodes of a tree, the root first."""
    yield node
    for child in node.children.values():
        yield from nodes(child)


def sound(tree: PrefixTree) -> None:
    """Check that sums match the entries, and that who holds a run holds all runs before it."""
    for shadow in tree.shadows():
        entries = list(shadow)
        tokens = sum(e.node.tokens(0, e.held) + e.extra for e in entries)
        assert shadow.size == pytest.approx(tokens)  # tokens are not whole numbers everywhere
        shared = sum(max(0, e.users - 1) * e.node.tokens(0, e.held) for e in entries)
        assert shadow.shared == pytest.approx(shared)
        places = {entry: place for place, entry in enumerate(entries)}
        for entry in entries:
            parent = entry.node.parent
            assert entry.node.entries[shadow.bit] is entry
            assert parent is not None
            if parent.parent is not None:
                above = parent.entries[shadow.bit]
                assert above.held == len(parent.keys)
                assert places[above] > places[entry]
