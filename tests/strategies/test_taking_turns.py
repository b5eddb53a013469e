"""Where most workers hold nearly all of a prompt, they take turns."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies.following import OWN_READY_S
from strategies.latebinding import READY_S, READY_TOKENS

from strategies.base import NO_LOADING, Candidate, Cost, Decision, Prompt
from strategies.explain import words
from strategies.load import Load
from strategies.pace import Pace
from strategies.ranking import ALIKE_S, Ranking, Row
from tests.strategies.placing import Run, Stand, fleet, prompt

TOKENS = 1_000


def row(place: int, total: float, held: int, turn: int, prefill: float = 0.1) -> Row:
    """Return the row of a worker that was chosen last at `turn`."""
    worker = Stand(f"w{place}")
    return total, 0.0, turn, place, worker, prefill, 0.0, 0.0, 0.0, 0.0, held, NO_LOADING, 0


def order(rows: list[Row], keys: Sequence[int] = ()) -> list[str]:
    """Return the names, best first; the first is looked at before the others."""
    ranking = Ranking(rows, Prompt("m", TOKENS, keys, ends=range(0, 8 * TOKENS, TOKENS // 4)))
    assert ranking[0] is ranking[0]
    return [ranking[0].worker.name, *(one.worker.name for one in ranking[1:])]


def waiting(one: Row, wait: float, own: bool) -> Row:
    """Return the row with so many seconds booked on its worker, in more than one step; `own`: for
    the blocks that all prompts have in common."""
    booking = one[4].load.book(0.0, wait, uncached=READY_TOKENS + 1)
    booking.keys = range(4) if own else ()
    return one[0], wait, *one[2:]


def test_who_was_chosen_longest_ago_is_next() -> None:
    """Not the cheapest, and not one that costs clearly more; the others follow by their cost."""
    rows = [
        row(0, 1.0, 900, 7),
        row(1, 1.0 + 0.9 * ALIKE_S, 900, 3),
        row(2, 1.0 + 1.1 * ALIKE_S, 900, 1),
        row(3, 1.0 + 0.5 * ALIKE_S, 900, 5),
    ]
    assert order(rows) == ["w1", "w0", "w3", "w2"]
    rows = [row(0, 1.2, 900, 0), row(1, 1.1, 900, 0), row(2, 1.0, 900, 1)]
    assert order(rows)[0] == "w1"  # workers that nothing was sent to yet


@pytest.mark.parametrize(
    ("held", "prefill"),
    [
        ((700, 700, 700, 700), (0.1,) * 4),
        ((900, 0, 0, 0), (0.1,) * 4),
        ((900, 899, 899, 899), (0.1,) * 4),
        ((900,) * 4, (0.1, 0.2, 0.2, 0.2)),
    ],
    ids=["too little of it", "only one", "others less", "others are slower"],
)
def test_otherwise_the_cheapest_is(held: Sequence[int], prefill: Sequence[float]) -> None:
    """If requests are not alike, or workers are not."""
    rows = [
        row(place, 1.0 + place / 100, held[place], 9 - place, prefill[place])
        for place in (*range(4),)
    ]
    assert order(rows) == ["w0", "w1", "w2", "w3"]


@pytest.mark.parametrize(("own", "ready_s"), [(False, READY_S), (True, OWN_READY_S)])
def test_nobody_is_held_for_a_turn(ready_s: float, *, own: bool) -> None:
    """A worker with a queue, or without room, is passed over if another would take the request at
    once; a queue that one step computes is none, and a short one for most of the same prompt."""
    free, queue, full = (row(place, 1.0 + place / 100, 900, 9 - place) for place in range(3))
    full = (*full[:8], 0.01, *full[9:])
    keys = range(4)
    assert order([free, waiting(queue, ready_s, own), full], keys) == ["w1", "w0", "w2"]
    queue = waiting(queue, ready_s + 0.1, own)
    assert order([free, queue, full], keys) == ["w0", "w1", "w2"]
    assert order([waiting(free, ready_s + 0.2, own), queue, full], keys)[0] == "w1"
    queue[4].load.uncached = READY_TOKENS
    assert order([free, queue, full], keys) == ["w1", "w0", "w2"]


def test_nobody_follows_who_would_be_held_for_others() -> None:
    """If some are held for a worker, it takes none sooner because it computes most of it."""
    free, queue = (row(place, 1.0 + place / 100, 900, 9 - place) for place in range(2))
    queue, keys = waiting(queue, READY_S + 0.1, own=True), range(4)
    load = queue[4].load
    assert order([free, queue], keys) == ["w1", "w0"]
    load.promises.append((0.0, 0.01))
    assert order([free, queue], keys) == ["w0", "w1"]


def test_half_of_the_workers_are_enough() -> None:
    """The others are still to get it."""
    rows = [row(0, 1.0, 900, 2), row(1, 1.1, 900, 1), row(2, 2.0, 0, 0), row(3, 2.0, 0, 0)]
    assert order(rows)[0] == "w1"
    assert order([*rows, row(4, 2.0, 0, 0)])[0] == "w0"


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from([0, 900]), st.integers(0, 9)),
        min_size=1,
        max_size=8,
    )
)
def test_all_are_ranked_and_the_first_hardly_costs_more(
    given_rows: list[tuple[int, int, int]],
) -> None:
    """However workers differ, each is a candidate once, and the others are sorted by cost."""
    rows = [
        row(place, total / 4, held, turn) for place, (total, held, turn) in enumerate(given_rows)
    ]
    costs = {one[4].name: one[0] for one in rows}
    names = order(list(rows))
    assert sorted(names) == sorted(costs)
    assert costs[names[0]] <= min(costs.values()) + ALIKE_S
    rest = [costs[name] for name in names[1:]]
    assert rest == sorted(rest)


@pytest.mark.parametrize("strategy", ["prefixaware", "kvaware"])
def test_a_common_prompt_goes_round(strategy: str) -> None:
    """Once all workers hold it, each of them gets every fourth request, although one has a little
    less to decode than the others."""
    workers = fleet(4)
    run = Run(strategy, workers)
    common = "what all requests begin with " * 400
    for worker in workers:
        run.strategy.placed(prompt(common), worker, 0.0)
    for worker in workers[1:]:
        worker.load.kv_tokens += 10_000
    chosen = [run.place(prompt(f"{common} {n}"), book=False).name for n in range(12)]
    assert chosen == [f"w{n % 4}" for n in range(12)]


class _Named:
    """A worker with a name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.load, self.pace = Load(), Pace()
        self.kv_tokens = self.room_tokens = None


def test_a_turn_is_told_as_such() -> None:
    """The first is not said to be cheapest if it is not; and one that holds more but costs less
    than the first is not said to be full."""
    turn, cheaper = (
        Candidate(_Named(name), Cost(decode=cost), 900) for name, cost in (("a", 1.2), ("b", 1.0))
    )
    asked = Prompt("m", TOKENS)
    told = words(asked, Decision([turn, cheaper], "prefix"))
    assert "a holds most of the prompt, 900 of 1000 tokens, and it is its turn" in told
    assert "and costs least" in words(asked, Decision([cheaper, turn], "prefix"))
    more = Candidate(_Named("c"), Cost(decode=1.1), 950)
    told = words(asked, Decision([turn, cheaper, more], "spill"))
    assert "c holds more, 950 of 1000 tokens, but costs 0.100 s more." in told
    assert "is its turn" in words(asked, Decision([turn, cheaper], "l2"))
    assert "is its turn" not in words(asked, Decision([cheaper, turn], "l2"))


def test_who_has_refused_is_not_passed_over_by_turn() -> None:
    """A worker that costs less, but comes last because it has just refused a request, does not make
    it the first one's turn; nor does it count where costs are compared."""
    first, refused = (
        Candidate(_Named(name), Cost(decode=cost), 900) for name, cost in (("a", 1.2), ("b", 0.2))
    )
    asked = Prompt("m", TOKENS)
    assert "and costs least" in words(asked, Decision([first, refused], "prefix", aside=1))
    more = Candidate(_Named("c"), Cost(decode=0.5), 950)
    told = words(asked, Decision([first, more, refused], "spill", aside=2))
    assert "c holds more, 950 of 1000 tokens, but says that it is full." in told
