"""What a prefix tree tells of a prompt, compared with pygtrie."""

from hypothesis import given
from hypothesis import strategies as st

from strategies.prefix.tree import PrefixTree
from tests.strategies.tries import LARGE, PROMPTS, STEPS, Prompt, Reference, keys


@given(STEPS, PROMPTS)
def test_depths_are_those_of_a_trie(steps: list[tuple[str, Prompt]], asked: Prompt) -> None:
    """Every worker is credited with exactly the longest prefix that was sent to it."""
    tree, reference = PrefixTree(LARGE), Reference()
    for worker, prompt in steps:
        tree.insert(keys(prompt), worker)
        reference.insert(prompt, worker)
    assert tree.held(keys(asked)) == reference.held(asked)
    assert len(tree) == sum(len(shadow_blocks(tree, name)) for name in tree._shadows)


def shadow_blocks(tree: PrefixTree, worker: str) -> list[int]:
    """Return the keys of the blocks that a worker is believed to hold."""
    return [key for entry in tree._shadows[worker] for key in entry.node.keys[: entry.held]]


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
