"""What the prefix tree knows of one prompt: who uses it, and where another copy is wanted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.prefix.lru import Node
from strategies.prefix.tree import NOT_WANTED, PrefixTree
from tests.strategies.prefix.tries import (
    APART,
    LARGE,
    ONE,
    OTHER,
    STEPS,
    Prompt,
    keys,
    nodes,
)


def path(node: Node) -> int:
    """Return a node's last key, which identifies the path down to it; 0 for the root."""
    return node.keys[-1] if node.parent is not None else 0


@given(STEPS, st.sets(st.integers(0, 39)), st.sets(st.integers(0, 39)))
def test_a_node_knows_how_many_use_it(
    steps: list[tuple[str, Prompt]], ended: set[int], refused: set[int]
) -> None:
    """A node counts the running requests whose prompt begins with its path, also after runs were
    split."""
    tree, users = PrefixTree(LARGE), dict[int, int]()
    placements = [tree.insert(keys(asked), worker) for worker, asked in steps]
    for number, (_, asked) in enumerate(steps):
        if number not in ended | refused:
            for key in [0, *keys(asked)]:
                users[key] = users.get(key, 0) + 1
            continue
        tree.close(placements[number])
        if number in refused:
            tree.take_back(placements[number])
    assert {path(node): node.users for node in nodes(tree.root) if node.users} == {
        path(node): users[path(node)] for node in nodes(tree.root) if users.get(path(node))
    }


@given(STEPS, st.integers(0, 40), st.sampled_from(["a", "b", "c"]))
def test_nobody_uses_it_when_all_have_ended(
    steps: list[tuple[str, Prompt]], when: int, gone: str
) -> None:
    """No users are left, even if a worker was forgotten meanwhile and sent the same prompts
    again."""
    tree, placements = PrefixTree(LARGE), []
    for number, (worker, asked) in enumerate(steps):
        if number == when:
            tree.forget(gone)
        placements.append(tree.insert(keys(asked), worker))
    for placement in placements:
        tree.close(placement)
    assert {node.users for node in nodes(tree.root)} == {0}


@pytest.mark.parametrize(
    ("sent", "workers", "blocks", "tokens"),
    [
        # A single request shares nothing.
        ([("a", ONE)], 8, 0, 0.0),
        # All running requests have the prefix, so most workers should hold it.
        ([("a", ONE)] * 3, 8, 4, 4.0),
        # Two requests count (not the first) of four: half of four workers should hold it, one does.
        ([("a", ONE), ("a", ONE), ("a", ONE), ("b", APART)], 4, 4, 4.0),
        # One of four requests counts: half a copy on two workers, and one worker holds it.
        ([("a", ONE), ("a", ONE), ("b", APART), ("b", APART)], 2, 0, 0.0),
        # One of three requests counts: 4/3 copies on four workers, so a third of a copy is missing.
        ([("a", ONE), ("a", ONE), ("b", APART)], 4, 4, 4 / 3),
        # Both workers hold it.
        ([("a", ONE), ("b", ONE)], 2, 0, 0.0),
        # Only as many blocks as the two prompts share.
        ([("a", ONE), ("a", OTHER)], 4, 2, 2.0),
    ],
)
def test_what_many_ask_for_is_wanted_on_as_many_workers(
    sent: list[tuple[str, Prompt]], workers: int, blocks: int, tokens: float
) -> None:
    """A prefix is wanted on as large a share of the workers as it has of the running requests."""
    tree = PrefixTree(LARGE)
    placements = [tree.insert(keys(asked), worker) for worker, asked in sent]
    wanted = tree.match(keys(ONE)).wanted(workers)
    assert wanted.blocks == blocks
    assert wanted.tokens == pytest.approx(tokens)
    for placement in placements:
        tree.close(placement)
    assert tree.match(keys(ONE)).wanted(workers) == NOT_WANTED
