"""The table of sessions: which worker each has, and for how long."""

import tracemalloc
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from router.sessions.table import MAX_DROPPED, MAX_MOVED, Binding, SessionLease, Table


def filled(lease: SessionLease, count: int) -> Table:
    """A table of so many sessions that began at 0, named by their numbers."""
    table = Table(lease)
    for number in range(count):
        table.bind(str(number), Binding("w"), None, 0)
    return table


def test_expiry_is_strict() -> None:
    """A session is over at its end; the first use at that time is refused already."""
    table = filled(SessionLease(ttl=10), 1)
    assert table.use("0", 9.999) is not None
    assert table.use("0", 10) is None
    assert (len(table), table.expired) == (0, 1)


def test_the_longest_life_ends_a_sliding_one() -> None:
    """`longest` ends a sliding session however often it is used."""
    table = filled(SessionLease(ttl=10, sliding=True, longest=25), 1)
    assert [table.use("0", now) is not None for now in (8, 16, 24, 25)] == [True, True, True, False]


def test_what_expired_makes_room_first() -> None:
    """An expired session makes room, so no live one is evicted."""
    table = Table(SessionLease(ttl=10, most=2))
    for key, now in (("a", 0), ("b", 8), ("c", 11)):
        table.bind(key, Binding("w"), None, now)
    assert (table.evicted, table.expired) == (0, 1)


def test_a_sweep_puts_back_only_so_many_that_have_moved() -> None:
    """Putting back all moved ends at once would take long, and they are not what it looks for."""
    table = filled(SessionLease(ttl=10, sliding=True), 5 * MAX_MOVED)
    for number in range(1, 5 * MAX_MOVED):
        table.use(str(number), 9)
    sweeps = 0
    while table.due(10):
        table.sweep(10)
        sweeps += 1
    assert sweeps >= 4
    assert (len(table), table.expired) == (5 * MAX_MOVED - 1, 1)


def test_a_sweep_drops_only_so_many() -> None:
    """All may expire at once, and a sweep is part of the request that starts the next session."""
    table = filled(SessionLease(ttl=10, most=5 * MAX_DROPPED), 5 * MAX_DROPPED)
    table.bind("next", Binding("w"), None, 10)
    assert len(table) == 4 * MAX_DROPPED + 1
    assert table.use("4999", 10) is None
    while table.due(10):
        table.sweep(10)
    assert (len(table), table.expired, table.evicted) == (1, 5 * MAX_DROPPED, 0)


def test_ends_of_closed_sessions_do_not_pile_up() -> None:
    """Memory stays small however many are opened and closed within one lifetime."""
    table = Table(SessionLease(ttl=inf))
    tracemalloc.start()
    try:
        for number in range(10_000):
            table.bind(str(number), Binding("w"), None, 0)
            table.close(str(number), 0)
        size, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size < 10_000 * 10


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["use", "bind", "move", "close", "sweep"]),
            st.sampled_from("abcdef"),
            st.floats(0, 5),
        ),
        max_size=60,
    ),
    st.booleans(),
)
def test_it_is_what_a_plain_dictionary_would_be(
    steps: list[tuple[str, str, float]], sliding: bool
) -> None:
    """The table matches a simple model that implements every rule again."""
    lease = SessionLease(ttl=6, sliding=sliding, longest=15, most=4)
    table, now = Table(lease), 0.0
    model: dict[str, tuple[float, float]] = {}  # created, expires; ordered by last use
    for what, key, later in steps:
        now += later
        model = {one: times for one, times in model.items() if now < times[1]}
        if what == "use":
            session = table.use(key, now)
            assert (session is not None) == (key in model)
            if key in model:
                created, expires = model.pop(key)
                if sliding:
                    expires = max(expires, min(now + 6, created + 15))
                model[key] = (created, expires)
        elif what == "bind":
            assert table.bind(key, Binding("w"), None, now).done == (key not in model)
            if key not in model:
                if len(model) == 4:
                    del model[next(iter(model))]
                model[key] = (now, now + 6)
            else:  # the caller goes to its worker: a use
                model[key] = model.pop(key)
        elif what == "move":
            assert table.bind(key, Binding("w"), "w", now).done == (key in model)
        elif what == "close":
            assert (table.close(key, now) is not None) == (model.pop(key, None) is not None)
        table.sweep(now)
        assert [one for one, _ in table.items(99, now)] == list(model)
