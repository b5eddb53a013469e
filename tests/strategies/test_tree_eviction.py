"""A prefix tree forgets as a worker of a known capacity does."""

from hypothesis import given
from hypothesis import strategies as st

from strategies.prefix.tree import LONGEST_ANSWER, Placement, PrefixTree
from tests.strategies.tries import LARGE, STEPS, Prompt, keys, sound


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
    tree.close(tree.insert(older, "a", 2 * LONGEST_ANSWER, ends))
    tree.close(tree.insert(keys((1,)), "a", 2 * LONGEST_ANSWER, ends), 2147483647)
    tree.insert(keys((2,)), "a", 2 * LONGEST_ANSWER, ends)
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
