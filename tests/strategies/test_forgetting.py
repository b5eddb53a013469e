"""A prefix tree forgets a worker that left: all of it, and nothing else."""

from hypothesis import given, settings

from strategies.prefix.tree import AT_ONCE, PrefixTree
from tests.strategies.tries import LARGE, PROMPTS, STEPS, WORKERS, Prompt, Reference, keys


@settings(max_examples=30)
@given(STEPS, WORKERS, PROMPTS)
def test_forgetting_is_for_one_worker(
    steps: list[tuple[str, Prompt]], gone: str, asked: Prompt
) -> None:
    """A forgotten worker holds nothing; the others hold what they held."""
    tree, reference = PrefixTree(LARGE), Reference()
    for worker, prompt in steps:
        tree.insert(keys(prompt), worker)
        reference.insert(prompt, worker)
    tree.forget(gone)
    reference.tries.pop(gone, None)
    assert tree.held(keys(asked)) == reference.held(asked)


def test_a_worker_that_comes_and_goes_leaves_nothing_behind() -> None:
    """A thousand restarts neither grow the tree nor mix up holders."""
    tree = PrefixTree(LARGE)
    path = keys((1, 2, 3))
    tree.insert(path, "steady")
    for _ in range(1000):
        late = tree.insert(path[:2], "flaky")
        assert tree.held(path) == {"steady": 3, "flaky": 2}
        tree.forget("flaky")
        tree.close(late)
        tree.take_back(late)
        assert tree.held(path) == {"steady": 3}
    assert len(tree) == 3
    assert len(list(tree._shadows["steady"])) == 2


def test_what_only_forgotten_workers_held_is_gone() -> None:
    """Nothing of a worker that left stays in memory."""
    tree = PrefixTree(LARGE)
    for number in range(3 * AT_ONCE // 2):
        tree.insert(keys((number, 1)), f"w{number % 3}")
    for number in range(3):
        tree.forget(f"w{number}")
    assert (len(tree), tree.bytes, tree.root.children, tree._shadows) == (0, 0, {}, {})
    assert (tree._by_bit, tree._untidy) == ({}, {})


def test_nobody_waits_while_a_large_one_is_forgotten() -> None:
    """Entries of a forgotten worker are dropped bit by bit with later placements; a new worker of
    the same name starts empty."""
    tree = PrefixTree(LARGE)
    for number in range(5 * AT_ONCE):
        tree.insert(keys((number, 1)), "w0")
    tree.forget("w0")
    assert len(tree) == 2 * 4 * AT_ONCE
    assert tree.held(keys((2, 1))) == tree.held(keys((5 * AT_ONCE - 1, 1))) == {}
    left = tree.bytes
    for number in (1, 2, 3, 4):
        tree.insert(keys((number, 2)), "w0")
        assert 0 < tree.bytes < left
        left = tree.bytes
        assert tree.held(keys((number, 1))) == {"w0": 1}
    tree.insert(keys((4, 2)), "w0")
    assert len(tree) == 2 * 4
    assert list(tree._by_bit.values()) == list(tree._shadows.values())
