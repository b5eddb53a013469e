"""What a prefix tree credits workers with: what was sent, and has not gone since."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.prefix.tree import Placement, PrefixTree
from tests.strategies.prefix.tries import (
    LARGE,
    PROMPTS,
    STEPS,
    WORKERS,
    Prompt,
    Reference,
    keys,
    sound,
)


@given(STEPS, PROMPTS)
def test_depths_are_those_of_a_trie(steps: list[tuple[str, Prompt]], asked: Prompt) -> None:
    """Every worker is credited with exactly the longest prefix that was sent to it."""
    tree, reference = PrefixTree(LARGE), Reference()
    for worker, prompt in steps:
        tree.insert(keys(prompt), worker)
        reference.insert(prompt, worker)
    assert tree.held(keys(asked)) == reference.held(asked)
    assert len(tree) == sum(shadow.blocks for shadow in tree.shadows())


@given(STEPS, st.sets(st.integers(0, 39)), PROMPTS)
def test_what_is_in_use_is_what_those_under_way_have(
    steps: list[tuple[str, Prompt]], ended: set[int], asked: Prompt
) -> None:
    """As much of the prompt as it shares with the most similar running request on the worker."""
    tree = PrefixTree(LARGE)
    under_way: dict[str, list[Prompt]] = {}
    placements = [tree.insert(keys(prompt), worker) for worker, prompt in steps]
    for number, (worker, prompt) in enumerate(steps):
        if number in ended:
            tree.close(placements[number])
        else:
            under_way.setdefault(worker, []).append(prompt)
    for worker in ("a", "b", "c", "nobody"):
        common = [
            next((n for n, (x, y) in enumerate(zip(one, asked, strict=False)) if x != y),
                 min(len(one), len(asked)))
            for one in under_way.get(worker, [])
        ]  # fmt: skip
        assert tree.match(keys(asked)).in_use(worker) == max(common, default=0)


@given(STEPS, st.integers(1, 12), st.data())
def test_what_is_under_way_is_kept(
    steps: list[tuple[str, Prompt]], capacity: int, data: st.DataObject
) -> None:
    """A worker cannot evict what running requests use; the tree stays consistent around it."""
    tree = PrefixTree(LARGE)
    open_: list[tuple[str, Prompt, Placement]] = []
    for worker, prompt in steps:
        open_.append((worker, prompt, tree.insert(keys(prompt), worker, capacity)))
        if data.draw(st.booleans()):
            tree.close(open_.pop(data.draw(st.integers(0, len(open_) - 1)))[2], 2.0)
        for name, asked, _ in open_:
            assert tree.held(keys(asked)).get(name, 0) == len(asked)
    for _, _, placement in open_:
        tree.close(placement)
    sound(tree)
    assert all(tree.shared(worker) == 0.0 for worker, _ in steps)


def test_it_forgets_what_the_worker_forgets() -> None:
    """Within the worker's capacity, the least recently used prefix goes and one that was used again
    stays."""
    tree = PrefixTree(LARGE)
    again, once, new = (keys((n, n, n)) for n in range(3))
    for path in (again, once, again, new):
        tree.close(tree.insert(path, "w", 6))
    assert [tree.held(path).get("w", 0) for path in (again, once, new)] == [3, 0, 3]


def test_answers_take_room_too() -> None:
    """Generated tokens stay in the cache until they are evicted, as prompts do."""
    tree = PrefixTree(LARGE)
    for number in range(3):
        tree.close(tree.insert(keys((number, 0)), "w", 10), answer=6.0)
    assert [len(tree.held(keys((n, 0)))) for n in range(3)] == [0, 1, 1]


def test_an_answer_of_a_thousand_million_tokens_is_not_believed() -> None:
    """One absurd report must not empty a shadow."""
    tree, ends = PrefixTree(LARGE), range(1 << 20)
    older = keys((0, 1, 2))
    tree.close(tree.insert(older, "a", 1 << 17, ends))
    tree.close(tree.insert(keys((1,)), "a", 1 << 17, ends), 2147483647)
    tree.insert(keys((2,)), "a", 1 << 17, ends)
    assert tree.held(older) == {"a": 3}


def test_blocks_are_as_large_as_they_are() -> None:
    """Capacity is in tokens: blocks of growing sizes, of text and of tokens, count with their true
    size."""
    tree = PrefixTree(LARGE)
    ends = (0, 4, 8, 16, 32)
    tree.close(tree.insert(keys((1, 1, 1, 1)), "w", 16, ends, 0.5))  # 16 tokens
    assert tree.held(keys((1, 1, 1, 1))) == {"w": 4}
    tree.close(tree.insert(keys((2, 2)), "w", 16, ends, 1.0))  # 8 tokens: 8 of the others stay
    assert tree.held(keys((1, 1, 1, 1))) == {"w": 3}


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


def test_nobody_waits_while_a_large_one_is_forgotten() -> None:
    """Entries of a forgotten worker are dropped bit by bit with later placements; a new worker of
    the same name starts empty."""
    tree, count = PrefixTree(LARGE), 1_000
    for number in range(count):
        tree.insert(keys((number, 1)), "w0")
    full = tree.bytes
    tree.forget("w0")
    assert all(tree.held(keys((number, 1))) == {} for number in range(count))
    sizes, number = [tree.bytes], 0
    while sizes[-1] > full / 20:
        tree.insert(keys((number, 2)), "w0")
        assert tree.held(keys((number, 1))) == {"w0": 1}
        sizes, number = [*sizes, tree.bytes], number + 1
    assert all(0 < before - after < full / 10 for before, after in pairwise([full, *sizes]))
    tree.insert((), "w0")
    assert len(tree) == 2 * number


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
