"""Running requests, and for how long those that have ended still count."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from strategies.prefix.tree import Placement
from strategies.prefix.under_way import UnderWay

KEYS = [1, 2, 3]


def test_it_counts_while_it_is_under_way_and_for_its_time() -> None:
    """A request counts while it runs, however long, and for its time after the end."""
    under_way = UnderWay(1 << 20, 1.0)
    long = under_way.insert(KEYS, "a", 0.0)
    short = under_way.insert(KEYS[:1], "b", 500.0)
    under_way.settle(short, 501.0, took=True)
    assert under_way.held(KEYS, 501.9) == {"a": 3, "b": 1}
    assert under_way.held(KEYS, 502.0) == {"a": 3}
    under_way.settle(long, 600.0, took=True)
    assert under_way.held(KEYS, 600.9) == {"a": 3}
    assert under_way.held(KEYS, 601.0) == {}
    assert len(under_way) == 0


def test_what_was_refused_was_never_sent() -> None:
    """A refused request does not count; a forgotten worker has nothing, even when its requests end
    later."""
    under_way = UnderWay(1 << 20, 1.0)
    refused, taken = (under_way.insert(KEYS, name, 0.0) for name in "ab")
    under_way.settle(refused, 0.0, took=False)
    assert under_way.held(KEYS, 0.0) == {"b": 3}
    under_way.forget("b")
    assert under_way.held(KEYS, 0.0) == {}
    under_way.settle(taken, 0.0, took=True)
    assert under_way.held(KEYS, 9.0) == {}


def test_of_those_that_ended_there_is_a_bound() -> None:
    """Only so many ended requests are kept; the earliest are dropped."""
    under_way, number = UnderWay(1 << 28, 1.0), 0
    while number < 200 or (under_way.held([0], 0.0) and number < 200_000):
        under_way.settle(under_way.insert([number], "a", 0.0), 0.0, took=True)
        number += 1
    assert number < 200_000
    assert under_way.held([0], 0.0) == {}
    assert under_way.held([number - 100], 0.0) == {"a": 1}


@dataclass
class Sent:
    """One request in the reference model."""

    keys: list[int]
    worker: str
    placement: Placement
    until: float = float("inf")


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 1), min_size=1, max_size=6),
            st.sampled_from("abc"),
            st.sampled_from(["send", "send", "end", "refuse", "forget"]),
            st.floats(0, 0.7),
        ),
        max_size=60,
    )
)
def test_it_is_what_is_open(steps: list[tuple[list[int], str, str, float]]) -> None:
    """For every prompt, the longest prefix it shares with a request that counts on that worker."""
    under_way, now = UnderWay(1 << 20, 1.0), 0.0
    sent: list[Sent] = []
    for bits, worker, what, passed in steps:
        now += passed
        # Keys are chained: each identifies everything up to it.
        keys = [hash(tuple(bits[: end + 1])) & ((1 << 59) - 1) for end in range(len(bits))]
        mine = [one for one in sent if one.worker == worker and one.until == float("inf")]
        if what == "send":
            sent.append(Sent(keys, worker, under_way.insert(keys, worker, now)))
        elif what == "forget":
            under_way.forget(worker)
            for one in mine:
                under_way.settle(one.placement, now, took=True)
            sent = [one for one in sent if one.worker != worker]
        elif mine:
            one = mine[len(bits) % len(mine)]
            one.until = now + 1.0 if what == "end" else now
            under_way.settle(one.placement, now, took=what == "end")
        sent = [one for one in sent if one.until > now]
        expected: dict[str, int] = {}
        for one in sent:
            same = sum(1 for a, b in zip(one.keys, keys, strict=False) if a == b)
            if same:
                expected[one.worker] = max(same, expected.get(one.worker, 0))
        assert under_way.held(keys, now) == expected
    assert bool(len(under_way)) == bool(sent)
