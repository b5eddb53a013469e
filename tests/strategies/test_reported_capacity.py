"""What workers' reports of cached tokens tell of how much they hold."""

from itertools import pairwise

import pytest

from strategies.prefixtree import AT_ONCE, PrefixTree
from strategies.shadow import BEHIND
from tests.strategies.tries import LARGE, keys


def test_fewer_tokens_than_believed_mean_that_all_older_ones_are_gone_too() -> None:
    """A worker evicts in order of use; what was used after the lost prefix is still there."""
    tree = PrefixTree(LARGE)
    paths = [keys((n, n)) for n in range(4)]
    for path in paths:
        tree.close(tree.insert(path, "w"))
    again = tree.insert(paths[1], "w")
    tree.close(again)
    tree.correct(again, -2, None)
    assert [len(tree.held(path)) for path in paths] == [0, 1, 1, 1]


def test_one_report_does_not_empty_a_shadow() -> None:
    """A report may be wrong: it removes at most half of what is believed to be held."""
    tree = PrefixTree(LARGE)
    for number in range(20):
        tree.close(tree.insert(keys((number, 1)), "w"))
    again = tree.insert(keys((19, 1)), "w")
    tree.close(again)
    tree.correct(again, -2, 40)
    assert len(tree) == 20
    assert tree._shadows["w"].scale == 0.5


def test_nobody_has_said_what_lies_behind_the_gpu() -> None:
    """A worker that reports cached tokens is assumed to have more than its GPU's capacity, until a
    report shows fewer."""
    tree = PrefixTree(LARGE)

    def report(number: int, more: float) -> int:
        placed = tree.insert(keys((number, 1)), "w", 10)
        tree.close(placed)
        tree.correct(placed, more, 10, told=False)
        return len(tree)

    for number in range(20):
        tree.close(tree.insert(keys((number, 1)), "w", 10))
    assert len(tree) == 10  # the GPU's capacity alone
    assert max(report(number, 0) for number in range(60)) == 10 * BEHIND
    fewer = report(50, -2)
    assert fewer <= 10 * BEHIND / 2 + 2
    assert max(report(number, 0) for number in range(100, 200)) <= fewer + 2
    assert max(report(number, 5) for number in range(200, 400)) > 10 * BEHIND


def test_what_was_told_is_come_back_to() -> None:
    """The learned capacity slowly returns to a stated one, as what was wrong for a while may be
    right again; if none was stated, there is nothing to return to."""
    tree = PrefixTree(LARGE)

    def scales(*, told: bool) -> list[float]:
        found = []
        for number in range(8_000):
            placed = tree.insert(keys((number, 1)), f"{told}", 10)
            tree.close(placed)
            tree.correct(placed, 5 if number < 3 else 0, 10, told=told)
            found.append(tree._shadows[f"{told}"].scale)
        return found[2:]

    returned, stayed = scales(told=True), scales(told=False)
    assert returned == sorted(returned, reverse=True)
    assert (returned[0], returned[-1]) == pytest.approx((1.3**3, 1.0), abs=0.001)
    assert returned[300] > 1.8
    assert (min(stayed), max(stayed)) == pytest.approx((BEHIND * 1.3**3,) * 2)


def test_nobody_waits_while_much_that_was_lost_is_forgotten() -> None:
    """A report, and each placement after it, drops a few entries; in the end half is gone."""
    tree, count = PrefixTree(1 << 22), 1_000
    for number in range(count):
        tree.close(tree.insert(keys((number,)), "a", count))
    gone = tree.insert(keys((count - 1,)), "a", count)
    running = tree.insert(keys((0,)), "a", count)
    tree.close(gone)
    tree.correct(gone, -1, count)
    (shadow,) = tree.shadows()
    sizes, scales = [len(tree)], [shadow.scale]
    while shadow.lost_at >= 0:
        tree.close(tree.insert((), "a", count))
        sizes.append(len(tree))
        scales.append(shadow.scale)
    assert sizes[0] >= count - AT_ONCE
    assert all(0 <= one - other <= AT_ONCE for one, other in pairwise(sizes))
    assert (sizes[-1], shadow.scale, set(scales[:-1])) == (count // 2, 0.5, {1.0})
    assert tree.held(keys((0,))) == {"a": 1}  # it is in use
    assert not tree.held(keys((1,)))
    tree.close(running)
