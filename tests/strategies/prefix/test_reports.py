"""What workers' reports of cached tokens tell of what they hold."""

import pytest
from msgspec.structs import replace

from strategies.api import Outcome, Prompt
from strategies.prefix.tree import PrefixTree
from tests.strategies.prefix.tries import LARGE, keys
from tests.strategies.workers import Run, fleet, prompt


def test_fewer_tokens_than_believed_mean_that_all_older_ones_are_gone_too() -> None:
    """A worker evicts in order of use; what was used after the lost prefix is still there."""
    tree = PrefixTree(LARGE)
    paths = [keys((n, n)) for n in range(4)]
    for path in paths:
        tree.close(tree.insert(path, "w"))
    again = tree.insert(paths[1], "w")
    tree.close(again)
    tree.correct(again, fewer=True)
    assert [len(tree.held(path)) for path in paths] == [0, 1, 1, 1]


def test_one_report_does_not_empty_a_shadow() -> None:
    """A report may be wrong: it removes at most half of what is believed to be held."""
    tree = PrefixTree(LARGE)
    for number in range(20):
        tree.close(tree.insert(keys((number, 1)), "w"))
    again = tree.insert(keys((19, 1)), "w")
    tree.close(again)
    tree.correct(again, fewer=True)
    assert len(tree) == 20


def sent(tree: PrefixTree, numbers: range, *, report: bool, gpu_only: bool = True) -> int:
    """Send so many prompts of two blocks to a worker that has room for ten on its GPU; return the
    most blocks that it was believed to hold."""
    most = 0
    for number in numbers:
        placed = tree.insert(keys((number, 1)), "w", 10, gpu_only=gpu_only)
        tree.close(placed)
        if report:
            tree.correct(placed, fewer=False)
        most = max(most, len(tree))
    return most


def test_nobody_has_said_what_lies_behind_the_gpu() -> None:
    """A worker that reports cached tokens is assumed to hold whatever it was sent, until a report
    shows fewer: then what was left, but never less than its GPU's."""
    tree = PrefixTree(LARGE)
    assert sent(tree, range(20), report=False) == 10
    most = sent(tree, range(60), report=True)
    assert most > 60
    for left in (most // 2, most // 4, most // 8, 10, 10):
        again = tree.insert(keys((59, 1)), "w", 10, gpu_only=True)
        tree.close(again)
        tree.correct(again, fewer=True)
        assert sent(tree, range(60), report=True) <= max(left + 4, 12)
    assert sent(tree, range(60), report=True) == 10


#: A long prompt, and one that is used before it.
TEXT, OLDER = prompt("word " * 40_000), prompt("what was asked before " * 500)
EXACT = Prompt("m", 48_000, range(1, 3_001), answer_tokens=1)


def is_lost(strategy: str, asked: Prompt, older: Prompt, cached: float, length: float) -> bool:
    """Return whether a prompt counts as evicted that was used before another one, of which `cached`
    times as many tokens as predicted are reported, in a prompt `length` times as long."""
    (worker,) = workers = fleet(1)
    strategy_ = Run(strategy, workers).strategy
    for each in (older, asked, replace(asked)):
        choice = strategy_.rank(each, workers, 0.0).candidates[0]
        found = int(cached * choice.held_tokens)
        strategy_.placed(each, worker, 0.0)
        tokens = int(length * each.tokens)
        outcome = Outcome(ok=True, prompt_tokens=tokens, cached_tokens=found, answer_tokens=1)
        strategy_.settled(each, choice, outcome, 0.0)
    assert strategy_.rank(asked, workers, 0.0).candidates[0].held_tokens > 0.9 * asked.tokens
    return strategy_.rank(older, workers, 0.0).candidates[0].held_tokens == 0


@pytest.mark.parametrize("strategy", ["prefixaware", "kvaware"])
@pytest.mark.parametrize(
    ("length", "cached", "lost"),
    [
        *((1.0, 1.0, False), (1.0, 2.0, False), (1.0, 0.95, False), (1.0, 0.9, True)),
        *((0.7, 0.7, False), (0.7, 1.0, False), (0.7, 0.85, False), (0.7, 0.63, True)),
        *((1.5, 1.5, False), (1.5, 1.0, False), (1.5, 1.25, False), (1.5, 0.9, True)),
    ],
)
def test_what_counts_as_fewer(strategy: str, length: float, cached: float, *, lost: bool) -> None:
    """Not what ends within a block of text, which has thousands of bytes; nor what is explained by
    more or fewer bytes to a token than estimated, in all of the prompt or in a part."""
    assert is_lost(strategy, TEXT, OLDER, cached, length) is lost
