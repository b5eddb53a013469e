"""The prefix tree against pygtrie, and its bound."""

import pygtrie
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.prefixtree import BLOCK_BYTES, PrefixTree

Prompt = tuple[int, ...]
_prompts = st.lists(st.integers(0, 2), max_size=8).map(tuple)
_workers = st.sampled_from(["a", "b", "c"])
_steps = st.lists(st.tuples(_workers, _prompts), max_size=40)
_LARGE = 1 << 20


def keys(prompt: Prompt) -> list[int]:
    """Chained keys of a prompt of one-symbol blocks: each names its whole path."""
    return [hash(("path", prompt[: end + 1])) for end in range(len(prompt))]


class Reference:
    """What was sent where, as one pygtrie trie a worker; it never forgets by itself."""

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


@given(_steps, _prompts)
def test_depths_are_those_of_a_trie(steps: list[tuple[str, Prompt]], asked: Prompt) -> None:
    """Every worker is credited with exactly the longest prefix that was sent to it."""
    tree, reference = PrefixTree(_LARGE), Reference()
    for worker, prompt in steps:
        tree.insert(keys(prompt), worker)
        reference.insert(prompt, worker)
    assert tree.held(keys(asked)) == reference.held(asked)


@given(_steps, _prompts, st.integers(3, 24), st.none() | st.integers(1, 6))
def test_bound_holds_and_never_invents(
    steps: list[tuple[str, Prompt]], asked: Prompt, blocks: int, capacity: int | None
) -> None:
    """A full tree stays within its bounds, credits nothing false, and keeps what came last."""
    tree, reference = PrefixTree(blocks * BLOCK_BYTES), Reference()
    for worker, prompt in steps:
        tree.insert(keys(prompt), worker, capacity)
        reference.insert(prompt, worker)
        assert len(tree) <= blocks
        assert tree.bytes <= blocks * BLOCK_BYTES
        share = blocks // len(reference.tries)
        room = share if capacity is None else min(share, capacity)
        assert tree.held(keys(prompt)).get(worker, 0) >= min(len(prompt), room)
    truth = reference.held(asked)
    assert all(depth <= truth.get(worker, 0) for worker, depth in tree.held(keys(asked)).items())


@given(_steps, st.integers(3, 24))
def test_eviction_cuts_leaves_first(steps: list[tuple[str, Prompt]], blocks: int) -> None:
    """No worker holds a block without the one before it, so what is held is always one piece."""
    tree = PrefixTree(blocks * BLOCK_BYTES)
    parents: dict[int, int | None] = {}
    for worker, prompt in steps:
        path = keys(prompt)
        parents.update(zip(path, [None, *path], strict=False))
        tree.insert(path, worker)
        for shadow in tree._workers.values():
            assert all(parents[key] is None or parents[key] in shadow.order for key in shadow.order)


def test_it_forgets_what_the_worker_forgets() -> None:
    """With the worker's own capacity, the least recently used prefix goes, a touched one stays."""
    tree = PrefixTree(_LARGE)
    old, touched, new = (keys((n, n, n)) for n in range(3))
    tree.insert(old, "w", 6)
    tree.insert(touched, "w", 6)
    tree.insert(old, "w", 6)
    tree.insert(new, "w", 6)
    assert [tree.held(path).get("w", 0) for path in (old, touched, new)] == [3, 0, 3]


@settings(max_examples=30)
@given(_steps, _workers, _prompts)
def test_forgetting_is_for_one_worker(
    steps: list[tuple[str, Prompt]], gone: str, asked: Prompt
) -> None:
    """A forgotten worker holds nothing; the others hold what they held."""
    tree, reference = PrefixTree(_LARGE), Reference()
    for worker, prompt in steps:
        tree.insert(keys(prompt), worker)
        reference.insert(prompt, worker)
    tree.forget(gone)
    reference.tries.pop(gone, None)
    assert tree.held(keys(asked)) == reference.held(asked)


def test_a_worker_that_comes_and_goes_leaves_nothing_behind() -> None:
    """Restarting a thousand times neither grows the tree nor mixes up holders."""
    tree = PrefixTree(_LARGE)
    path = keys((1, 2, 3))
    tree.insert(path, "steady")
    for _ in range(1000):
        tree.insert(path[:2], "flaky")
        assert tree.held(path) == {"steady": 3, "flaky": 2}
        tree.forget("flaky")
        assert tree.held(path) == {"steady": 3}
    assert len(tree) == 3


def test_what_only_forgotten_workers_held_is_gone() -> None:
    """Nothing of a worker that left stays in memory."""
    tree = PrefixTree(_LARGE)
    for number in range(200):
        tree.insert(keys((number, 1)), f"w{number % 3}")
    for number in range(3):
        tree.forget(f"w{number}")
    assert (len(tree), tree._holders, tree._workers) == (0, {}, {})


@given(_steps, _workers, _prompts)
def test_a_placement_taken_back_was_never_there(
    steps: list[tuple[str, Prompt]], worker: str, refused: Prompt
) -> None:
    """Everybody holds what they held before it."""
    tree, reference = PrefixTree(_LARGE), Reference()
    for name, prompt in steps:
        tree.insert(keys(prompt), name)
        reference.insert(prompt, name)
    placement = tree.insert(keys(refused), worker)
    tree.take_back(keys(refused), worker, placement)
    for _, prompt in [*steps, (worker, refused)]:
        assert tree.held(keys(prompt)) == reference.held(prompt)


@given(_steps, _workers, _prompts, _prompts)
def test_taking_back_never_disconnects(
    steps: list[tuple[str, Prompt]], worker: str, refused: Prompt, since: Prompt
) -> None:
    """What was placed since stays held whole, and what remains stays in one piece."""
    tree = PrefixTree(_LARGE)
    for name, prompt in steps:
        tree.insert(keys(prompt), name)
    placement = tree.insert(keys(refused), worker)
    tree.insert(keys(since), worker)
    tree.take_back(keys(refused), worker, placement)
    assert tree.held(keys(since)).get(worker, 0) == len(since)
    for prompt in (refused, *(prompt for _, prompt in steps)):
        path = keys(prompt)
        held = [key in tree._workers[worker].order for key in path]
        assert held == sorted(held, reverse=True)
    for name in ("a", "b", "c"):
        tree.forget(name)
    assert (len(tree), tree._holders) == (0, {})
