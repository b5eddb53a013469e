"""Placements that were refused or dropped are taken back, in whole or in part."""

from hypothesis import given
from hypothesis import strategies as st

from strategies.prefix.tree import PrefixTree
from tests.strategies.tries import LARGE, PROMPTS, STEPS, WORKERS, Prompt, Reference, keys, sound


@given(STEPS, WORKERS, PROMPTS)
def test_a_placement_taken_back_was_never_there(
    steps: list[tuple[str, Prompt]], worker: str, refused: Prompt
) -> None:
    """Every worker holds what it held before the placement."""
    tree, reference = PrefixTree(LARGE), Reference()
    for name, prompt in steps:
        tree.insert(keys(prompt), name)
        reference.insert(prompt, name)
    placement = tree.insert(keys(refused), worker)
    tree.close(placement)
    tree.take_back(placement)
    for _, prompt in [*steps, (worker, refused)]:
        assert tree.held(keys(prompt)) == reference.held(prompt)


@given(STEPS, WORKERS, PROMPTS, PROMPTS)
def test_taking_back_never_disconnects(
    steps: list[tuple[str, Prompt]], worker: str, refused: Prompt, since: Prompt
) -> None:
    """What was placed later stays held in full, and no worker holds a run without the runs before
    it."""
    tree = PrefixTree(LARGE)
    for name, prompt in steps:
        tree.insert(keys(prompt), name)
    placement = tree.insert(keys(refused), worker)
    tree.insert(keys(since), worker)
    tree.close(placement)
    tree.take_back(placement)
    assert tree.held(keys(since)).get(worker, 0) == len(since)
    for shadow in tree._shadows.values():
        for entry in shadow:
            parent = entry.node.parent
            assert parent is not None
            assert parent.parent is None or parent.entries[shadow.bit].held == len(parent.keys)
    for name in ("a", "b", "c"):
        tree.forget(name)
    assert (len(tree), tree.root.children) == (0, {})


@given(STEPS, st.booleans(), WORKERS, PROMPTS, st.integers(0, 9))
def test_of_a_dropped_placement_its_first_blocks_are_kept(
    steps: list[tuple[str, Prompt]],
    ended: bool,
    worker: str,
    dropped: Prompt,
    kept: int,
) -> None:
    """The worker holds those, and whatever it held before; nothing else changes."""
    tree, reference = PrefixTree(LARGE), Reference()
    for name, prompt in steps:
        placement = tree.insert(keys(prompt), name)
        if ended:
            tree.close(placement)
        reference.insert(prompt, name)
    placement = tree.insert(keys(dropped), worker)
    tree.close(placement)
    tree.keep(placement, kept)
    reference.insert(dropped[:kept], worker)
    for _, prompt in [*steps, (worker, dropped)]:
        assert tree.held(keys(prompt)) == reference.held(prompt)
    sound(tree)


@given(STEPS, WORKERS, PROMPTS, PROMPTS, st.integers(0, 9))
def test_of_a_dropped_placement_others_keep_what_they_use(
    steps: list[tuple[str, Prompt]], worker: str, dropped: Prompt, since: Prompt, kept: int
) -> None:
    """One that came later and still runs holds all of its prompt; the dropped one holds no more
    than that and its first blocks."""
    tree, reference = PrefixTree(LARGE), Reference()
    for name, prompt in steps:
        tree.close(tree.insert(keys(prompt), name))
        reference.insert(prompt, name)
    placement = tree.insert(keys(dropped), worker)
    runs = tree.insert(keys(since), worker)
    tree.close(placement)
    tree.keep(placement, kept)
    for prompt in (dropped[:kept], since):
        reference.insert(prompt, worker)
    assert tree.held(keys(since)) == reference.held(since)
    assert tree.held(keys(dropped)) == reference.held(dropped)
    tree.close(runs)
    sound(tree)


def test_what_was_added_to_a_dropped_placement_stays() -> None:
    """Blocks before those that another one has computed since are there, even if it has ended."""
    tree = PrefixTree(LARGE)
    dropped = tree.insert(keys((0, 1, 2, 3, 4, 5)), "w")
    tree.close(tree.insert(keys((0, 1, 2, 3, 9)), "w"))
    tree.insert(keys((0, 1, 9)), "other")
    tree.close(dropped)
    tree.keep(dropped, 1)
    assert tree.held(keys((0, 1, 2, 3, 4, 5))) == {"w": 4, "other": 2}
    assert tree.held(keys((0, 1, 2, 3, 9))) == {"w": 5, "other": 2}
    sound(tree)


def test_of_a_forgotten_worker_nothing_is_kept() -> None:
    """A worker that came back under its name is another one."""
    tree, path = PrefixTree(LARGE), keys((1, 2, 3))
    tree.insert(path, "other")
    dropped = tree.insert(path, "w")
    tree.forget("w")
    tree.close(tree.insert(path, "w"))
    tree.close(dropped)
    tree.keep(dropped, 1)
    assert tree.held(path) == {"w": 3, "other": 3}
