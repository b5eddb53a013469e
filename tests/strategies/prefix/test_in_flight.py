"""Running requests, and for how long those that have ended still count."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from strategies.policies.kv_aware import InFlight
from strategies.prefix.tree import Placement

KEYS = [1, 2, 3]


def test_it_counts_while_it_is_under_way_and_for_its_time() -> None:
    """A request counts while it runs, however long, and for its time after the end."""
    in_flight = InFlight(1 << 20, 1.0)
    long = in_flight.insert(KEYS, "a", 0.0)
    short = in_flight.insert(KEYS[:1], "b", 500.0)
    in_flight.settle(short, 501.0, took=True)
    assert in_flight.held(KEYS, 501.9) == {"a": 3, "b": 1}
    assert in_flight.held(KEYS, 502.0) == {"a": 3}
    in_flight.settle(long, 600.0, took=True)
    assert in_flight.held(KEYS, 600.9) == {"a": 3}
    assert in_flight.held(KEYS, 601.0) == {}
    assert len(in_flight) == 0


def test_what_was_refused_was_never_sent() -> None:
    """A refused request does not count; a forgotten worker has nothing, even when its requests end
    later."""
    in_flight = InFlight(1 << 20, 1.0)
    refused, taken = (in_flight.insert(KEYS, name, 0.0) for name in "ab")
    in_flight.settle(refused, 0.0, took=False)
    assert in_flight.held(KEYS, 0.0) == {"b": 3}
    in_flight.forget("b")
    assert in_flight.held(KEYS, 0.0) == {}
    in_flight.settle(taken, 0.0, took=True)
    assert in_flight.held(KEYS, 9.0) == {}


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
    in_flight, now = InFlight(1 << 20, 1.0), 0.0
    sent: list[Sent] = []
    for bits, worker, what, passed in steps:
        now += passed
        # Keys are chained: each identifies everything up to it.
        keys = [hash(tuple(bits[: end + 1])) & ((1 << 59) - 1) for end in range(len(bits))]
        mine = [one for one in sent if one.worker == worker and one.until == float("inf")]
        if what == "send":
            sent.append(Sent(keys, worker, in_flight.insert(keys, worker, now)))
        elif what == "forget":
            in_flight.forget(worker)
            for one in mine:
                in_flight.settle(one.placement, now, took=True)
            sent = [one for one in sent if one.worker != worker]
        elif mine:
            one = mine[len(bits) % len(mine)]
            one.until = now + 1.0 if what == "end" else now
            in_flight.settle(one.placement, now, took=what == "end")
        sent = [one for one in sent if one.until > now]
        expected: dict[str, int] = {}
        for one in sent:
            same = sum(1 for a, b in zip(one.keys, keys, strict=False) if a == b)
            if same:
                expected[one.worker] = max(same, expected.get(one.worker, 0))
        assert in_flight.held(keys, now) == expected
    assert bool(len(in_flight)) == bool(sent)
