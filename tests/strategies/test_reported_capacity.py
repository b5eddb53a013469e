"""What workers' reports of cached tokens tell of how much they hold."""

from collections.abc import Callable
from itertools import pairwise
from math import prod

import pytest
from msgspec.structs import replace
from strategies.capacity import BEHIND, DOWN, FIRST_RISE, LEAST, MOST, RISE, STEEPER, UP, Capacity

from strategies.base import Outcome, Prompt
from strategies.kvaware import KvAware
from strategies.prefixaware import PrefixAware, capacity_of
from strategies.prefixtree import AT_ONCE, PrefixTree
from tests.strategies.placing import Run, fleet, prompt
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
    assert tree._shadows["w"].capacity.scale == 0.5


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


def test_more_than_was_sent_tells_nothing_until_something_was_forgotten() -> None:
    """It was there before the router started, or came from another one: too little room was not the
    reason why it was not known."""
    tree = PrefixTree(LARGE)
    scales = list[float]()
    for number in range(20):
        placed = tree.insert(keys((number,)), "w", 10)
        tree.close(placed)
        tree.correct(placed, 5, 10)
        scales.append(tree._shadows["w"].capacity.scale)
    assert scales[:10] == [1.0] * 10
    assert scales[10] > 1.0


@pytest.mark.parametrize("anew", ["told", "first report"])
def test_what_was_forgotten_of_another_capacity_tells_nothing_of_the_new_one(anew: str) -> None:
    """It was forgotten by the old one, and would not have been by the new one."""
    tree = PrefixTree(LARGE)
    for number in range(10):
        placed = tree.insert(keys((number,)), "w", 5)
        tree.close(placed)
        if anew == "told":
            tree.correct(placed, 0, 5)
    shadow = tree._shadows["w"]
    assert shadow.full
    for number in range(5):
        placed = tree.insert(keys((number,)), "w", 100)
        tree.close(placed)
        tree.correct(placed, 1, 100, told=anew == "told")
    assert shadow.capacity.scale == (1.0 if anew == "told" else BEHIND)


@pytest.mark.parametrize("why", ["memory", "answer", "lost"])
def test_what_counts_as_forgotten_for_lack_of_capacity(why: str) -> None:
    """What exceeds the capacity, or is found to be gone; not what the router lacks memory for."""
    tree = PrefixTree(3_000 if why == "memory" else LARGE)
    for number in range(8):
        placed = tree.insert(keys((number,)), "w", 9)
        tree.close(placed, 3 if why == "answer" and not number else 0)
    if why == "lost":
        placed = tree.insert(keys((5,)), "w", 9)
        tree.close(placed)
        tree.correct(placed, -1, 9)
    assert (len(tree) < 8) == (why != "answer")
    assert tree._shadows["w"].full == (why != "memory")


def test_what_was_told_is_come_back_to() -> None:
    """The learned capacity slowly returns to a stated one, as what was wrong for a while may be
    right again; if none was stated, there is nothing to return to."""
    tree = PrefixTree(LARGE)

    def scales(*, told: bool) -> list[float]:
        found = []
        shadow = tree.join(f"{told}")
        shadow.capacity.hear(10, told=told)
        shadow.full = True
        for number in range(8_000):
            placed = tree.insert(keys((number, 1)), f"{told}", 10)
            tree.close(placed)
            tree.correct(placed, 5 if number < 6 else 0, 10, told=told)
            found.append(shadow.capacity.scale)
        return found[5:]

    raised = prod(min(RISE, FIRST_RISE ** (STEEPER**number)) for number in range(6))
    returned, stayed = scales(told=True), scales(told=False)
    assert returned == sorted(returned, reverse=True)
    assert (returned[0], returned[-1]) == pytest.approx((raised, 1.0), abs=0.001)
    assert returned[300] > 1.8
    assert (min(stayed), max(stayed)) == pytest.approx((BEHIND * raised,) * 2)


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
    sizes, scales = [len(tree)], [shadow.capacity.scale]
    while shadow.lost_at >= 0:
        tree.close(tree.insert((), "a", count))
        sizes.append(len(tree))
        scales.append(shadow.capacity.scale)
    assert sizes[0] >= count - AT_ONCE
    assert all(0 <= one - other <= AT_ONCE for one, other in pairwise(sizes))
    assert (sizes[-1], shadow.capacity.scale, set(scales[:-1])) == (count // 2, 0.5, {1.0})
    assert tree.held(keys((0,))) == {"a": 1}  # it is in use
    assert not tree.held(keys((1,)))
    tree.close(running)


def of(scale: float, fellows: dict[Capacity, None], stated: float = 10.0) -> Capacity:
    """Return the capacity of a worker that reports, and of which nothing is told but the GPU's."""
    made = Capacity(fellows)
    made.hear(stated, told=False)
    made.scale = scale
    return made


def test_steps_grow_as_long_as_they_go_up() -> None:
    """The first is small, so little has to be taken back where the capacity is about right; a much
    larger one is found in a few more."""
    one = of(1.0, {})
    steps = []
    for _ in range(6):
        before = one.scale
        one.more()
        steps.append(one.scale / before)
    assert steps[:2] == pytest.approx([FIRST_RISE, FIRST_RISE**STEEPER])
    assert steps == sorted(steps)
    assert steps[-1] == pytest.approx(RISE)
    one.less(10.0)
    lowered = one.scale
    one.more()
    assert one.scale / lowered == pytest.approx(FIRST_RISE)


def test_workers_alike_follow_but_not_beyond() -> None:
    """Of a worker with more, they go half of a step; of one with less, a third of the way. What is
    stated of them may differ a little."""
    fellows = dict[Capacity, None]()
    first, lower, nearly, higher = (
        of(scale, fellows, stated)
        for scale, stated in ((5.0, 10.0), (4.0, 10.4), (5.19, 10.0), (8.0, 9.6))
    )
    first.more()
    assert first.scale == pytest.approx(5.0 * FIRST_RISE)
    assert lower.scale == pytest.approx(4.0 * FIRST_RISE**UP)
    assert (nearly.scale, higher.scale) == (first.scale, 8.0)
    first.less(45.0)
    assert first.scale == 4.5
    assert higher.scale == pytest.approx(8.0 * (4.5 / 8.0) ** DOWN)
    assert lower.scale == pytest.approx(4.0 * FIRST_RISE**UP)


def test_nothing_is_learned_of_what_is_not_stated() -> None:
    """It would take effect, unfounded, once the worker reports its size."""
    fellows = dict[Capacity, None]()
    unknown, other = Capacity(fellows), Capacity(fellows)
    for one in (unknown, other):
        one.hear(None, told=False)
    unknown.more()
    unknown.less(5.0)
    assert (unknown.scale, other.scale) == (BEHIND, BEHIND)


def test_a_capacity_that_is_stated_late_starts_with_what_others_have_shown() -> None:
    """A worker may answer before its metrics have been read."""
    fellows = dict[Capacity, None]()
    of(1.2, fellows)
    late = Capacity(fellows)
    late.hear(None, told=False)
    assert late.scale == BEHIND
    late.hear(10.0, told=False)
    assert late.scale == 1.2


def test_what_is_told_later_is_not_multiplied() -> None:
    """How many times its GPU's capacity a worker holds says nothing about the capacity of all
    tiers, which an operator may set at any time, and take out again."""
    fellows = dict[Capacity, None]()
    one, other = of(7.0, fellows), of(3.0, fellows)
    alike = Capacity(fellows)
    alike.hear(50.0, told=True)
    alike.scale = 2.0
    one.hear(50.0, told=True)
    assert one.scale == 1.0
    one.hear(10.0, told=False)
    assert (one.scale, other.scale) == (3.0, 3.0)
    unsized = Capacity({})
    unsized.hear(None, told=False)
    unsized.hear(50.0, told=True)
    assert unsized.scale == 1.0


def test_it_stays_within_bounds() -> None:
    """A dump with another one could not be read."""
    one = of(BEHIND, {})
    for _ in range(20):
        one.more()
    assert one.scale == MOST
    for _ in range(20):
        one.less(0.0)
    assert one.scale == LEAST


@pytest.mark.parametrize("wrong", ["more", "less"])
def test_either_way_of_being_wrong_counts(wrong: str) -> None:
    """It follows half as far after one error as before."""
    fellows = dict[Capacity, None]()
    other = of(4.0, fellows)
    if wrong == "more":
        other.more()
    else:
        other.less(30.0)
    other.scale = 4.0
    of(4.0, fellows).less(20.0)
    assert other.scale == pytest.approx(4.0 * 0.5 ** (DOWN / 2))


def test_nobody_follows_a_worker_with_which_all_is_cached() -> None:
    """It may report nonsense, or load from a store that all share; others would go on following it
    up."""
    fellows = dict[Capacity, None]()
    odd, other = of(BEHIND, fellows), of(BEHIND, fellows)
    followed = other.scale
    while odd.scale < MOST:
        followed = other.scale
        odd.more()
    assert BEHIND < followed < MOST / 1.5
    for _ in range(1_000):
        odd.more()
    assert (odd.scale, other.scale) == (MOST, followed)


@pytest.mark.parametrize(
    ("before", "now", "scale"),
    [
        ((10.0, False), (50.0, True), 1.0),
        ((50.0, True), (10.0, False), BEHIND),
        ((50.0, True), (60.0, True), 1.0),
        ((50.0, True), (50.0, True), 3.0),
        ((10.0, False), (12.0, False), 3.0),
        ((None, False), (10.0, False), BEHIND),
    ],
)
def test_what_an_operator_says_anew_is_believed(
    before: tuple[float | None, bool], now: tuple[float, bool], scale: float
) -> None:
    """What was learned is a multiple of what was stated before: `kv_tokens` can be set, changed and
    left out while the router runs."""
    one = Capacity({})
    one.hear(before[0], told=before[1])
    one.scale, one.wrong = 3.0, 7
    one.hear(now[0], told=now[1])
    assert (one.scale, one.wrong) == (scale, 7 if scale == 3.0 else 0)


def test_a_worker_that_is_always_wrong_misleads_others_little() -> None:
    """It may report nonsense, or share its cache with others."""
    fellows = dict[Capacity, None]()
    odd, other = of(8.0, fellows), of(8.0, fellows)
    fell = []
    for _ in range(50):
        before, odd.scale = other.scale, 8.0
        odd.less(40.0)
        fell.append(before / other.scale - 1.0)
        other.scale = 8.0
    assert fell[0] == pytest.approx(fell[4])
    assert fell[4] > fell[5] > 8 * fell[-1] > 0.0


def test_the_more_a_worker_has_seen_itself_the_less_it_follows() -> None:
    """Else one with twice the memory, or that reports nonsense, would mislead others for ever."""
    fellows = dict[Capacity, None]()
    odd, other = of(4.0, fellows), of(2.0, fellows)
    for _ in range(9):
        other.more()
        other.scale = 2.0
    odd.scale = 4.0
    odd.less(30.0)
    odd.more()
    assert 2.0 < other.scale < 2.0 * FIRST_RISE ** (UP / 9)
    odd.less(10.0)
    assert 2.0 * 0.5 ** (DOWN / 9) < other.scale < 2.0


def test_nobody_follows_a_worker_that_caches_nothing() -> None:
    """It loses what it was sent with each request, so others would go on following it down."""
    fellows = dict[Capacity, None]()
    odd, other = of(0.6, fellows), of(2.0, fellows)
    odd.less(0.0)
    assert odd.scale == 0.3
    followed = other.scale
    assert followed < 2.0
    for _ in range(1_000):
        odd.less(0.0)
    assert (odd.scale, other.scale) == (LEAST, followed)


def test_what_a_forgotten_worker_had_lost_lowers_nobody() -> None:
    """It was restarted, and that was noticed only while what it had lost was being forgotten."""
    tree = PrefixTree(LARGE)
    for number in range(4 * AT_ONCE):
        tree.close(tree.insert(keys((number,)), "a", 1_000))
    gone = tree.insert(keys((4 * AT_ONCE - 1,)), "a", 1_000)
    tree.close(gone)
    for name in ("a", "b"):
        (tree._shadows.get(name) or tree.join(name)).capacity.hear(1_000, told=False)
    tree.correct(gone, -1, 1_000, told=False)
    forgotten, other = tree.shadows()
    assert forgotten.lost_at >= 0
    tree.forget("a")
    for _ in range(8):
        tree.close(tree.insert(keys((0,)), "b", 1_000))
    assert (len(tree), other.capacity.scale) == (1, BEHIND)


@pytest.mark.parametrize("unlike", ["stated", "nothing", "told", "reports", "gone"])
def test_others_are_left_alone(unlike: str) -> None:
    """Only what reports, and has the same stated of the same tiers, says anything about it."""
    tree = PrefixTree(LARGE)
    one, other = (tree.join(name).capacity for name in ("one", "other"))
    for capacity in (one, other):
        capacity.hear(10.0, told=False)
        capacity.scale = 2.0
    if unlike == "stated":
        other.stated = 11.0
    elif unlike == "nothing":  # as after a restart of the router
        other.stated = None
    elif unlike == "told":
        other.told = True
    elif unlike == "reports":
        other.reports = False
    else:
        tree.forget("other")
    one.more()
    assert (one.scale, other.scale) == (2.0 * FIRST_RISE, 2.0)


def test_a_new_worker_starts_with_what_others_have_shown() -> None:
    """A fleet that grows does not learn again what is known of its workers."""
    fellows = dict[Capacity, None]()
    of(1.0, fellows), of(1.5, fellows), of(9.0, fellows, 20.0)
    made = Capacity(fellows)
    made.hear(10.0, told=False)
    assert made.scale == 1.25
    made.scale = 3.0
    made.hear(10.0, told=False)
    assert made.scale == 3.0
    alone = Capacity(fellows)
    alone.hear(30.0, told=False)
    assert alone.scale == BEHIND


@pytest.mark.parametrize("bound", [LEAST, MOST])
def test_a_new_worker_takes_nothing_from_one_at_a_bound(bound: float) -> None:
    """It may report that nothing is cached, or all."""
    fellows = dict[Capacity, None]()
    of(bound, fellows)
    made = Capacity(fellows)
    made.hear(10.0, told=False)
    assert made.scale == BEHIND
    of(2.0, fellows)
    another = Capacity(fellows)
    another.hear(10.0, told=False)
    assert another.scale == (BEHIND + 2.0) / 2


def learned(
    strategy: str,
    prompts: list[Prompt],
    cached: Callable[[int], int],
    length: float = 1.0,
    kv_tokens: int | None = 400_000,
) -> float:
    """Return the learned capacity, where `cached` makes the report of what was predicted.

    Prompts are reported to be `length` times as long.
    """
    (worker,) = workers = fleet(1)
    worker.kv_tokens = kv_tokens
    run = Run(strategy, workers)
    assert isinstance(run.strategy, PrefixAware | KvAware)
    tree = run.strategy._tree if isinstance(run.strategy, PrefixAware) else run.strategy._shadow
    shadow = tree.join("w0")
    shadow.capacity.hear(capacity_of(worker), told=kv_tokens is not None)
    shadow.full = True
    for asked in prompts:
        run.place(asked)
        choice = run.strategy.rank(asked, workers, 0.0).candidates[0]
        run.strategy.placed(asked, worker, 0.0)
        tokens = int(length * asked.tokens)
        found = cached(choice.held_tokens)
        outcome = Outcome(ok=True, prompt_tokens=tokens, cached_tokens=found, answer_tokens=1)
        run.strategy.settled(asked, choice, outcome, 0.0)
    return shadow.capacity.scale


@pytest.mark.parametrize("strategy", ["prefixaware", "kvaware"])
@pytest.mark.parametrize(("off", "changes"), [(0.05, 0), (0.1, 1), (-0.05, 0), (-0.1, -1)])
def test_what_ends_within_a_block_of_text_tells_nothing(
    strategy: str, off: float, changes: int
) -> None:
    """Blocks deep in a prompt have thousands of bytes, of which all but the last may be cached; and
    how many tokens these are is known only roughly."""
    text = [prompt("word " * 40_000 + f"end {number}") for number in range(4)]
    scale = learned(strategy, text, lambda held: int(held * (1.0 + off)))
    assert (scale > 1.0) - (scale < 1.0) == changes


def test_where_blocks_are_tokens_every_block_counts() -> None:
    """Nothing is cut roughly there, so more than 512 tokens mean something, however long it is."""
    exact = [Prompt("m", 60_000, range(1, 3_000), answer_tokens=1) for _ in range(2)]
    assert learned("prefixaware", exact, lambda held: held + 513) > 1.0
    assert learned("prefixaware", exact, lambda held: held + 512) == 1.0


@pytest.mark.parametrize("strategy", ["prefixaware", "kvaware"])
@pytest.mark.parametrize(
    ("length", "found", "changes"),
    [
        *((0.7, 0.7, 0), (0.7, 1.0, 0), (0.7, 0.85, 0), (0.7, 0.63, -1), (0.7, 1.1, 1)),
        *((1.5, 1.5, 0), (1.5, 1.0, 0), (1.5, 1.25, 0), (1.5, 0.9, -1), (1.5, 1.65, 1)),
    ],
)
def test_a_prompt_of_another_length_than_estimated_tells_nothing_by_that(
    strategy: str, length: float, found: float, changes: int
) -> None:
    """Source code has fewer bytes to a token than prose, and no cache holds more or less of it;
    whether all of the prompt is of that kind, or only what is held, or only the rest."""
    text = [prompt("word " * 40_000 + f"end {number}") for number in range(4)]
    scale = learned(strategy, text, lambda held: int(found * held), length)
    assert (scale > 1.0) - (scale < 1.0) == changes


@pytest.mark.parametrize("strategy", ["prefixaware", "kvaware"])
def test_images_are_no_sign_of_a_larger_cache(strategy: str) -> None:
    """Their tokens are cached too, but no block of text counts them."""
    text = [replace(prompt("word " * 8_000 + f"end {n}"), media=2) for n in range(4)]
    assert learned(strategy, text, lambda held: held + 3_000) == 1.0
    assert learned(strategy, text, lambda held: held // 2) < 1.0


@pytest.mark.parametrize("strategy", ["prefixaware", "kvaware"])
@pytest.mark.parametrize(("kv_tokens", "scale"), [(None, BEHIND), (400_000, 1.0)])
def test_only_what_is_not_told_may_be_more(
    strategy: str, kv_tokens: int | None, scale: float
) -> None:
    """Where `kv_tokens` is not set, what the worker reports of its GPU is stated."""
    asked = [prompt("word " * 8_000 + f"end {number}") for number in range(2)]
    assert learned(strategy, asked, lambda held: held, kv_tokens=kv_tokens) == scale
