"""The table of sessions: which worker each has, and for how long."""

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from router.sessions.table import DROPPED, MOVED, Binding, SessionLease, Table


def test_expiry_is_strict() -> None:
    """A session is over at its end; the first use at that time is refused already."""
    table = Table(SessionLease(ttl=10))
    table.bind("a", Binding("w"), None, 100)
    assert table.use("a", 109.999) is not None
    assert table.use("a", 110) is None
    assert (len(table), table.expired) == (0, 1)


def test_use_does_not_lengthen_it() -> None:
    """Use extends a session only if sessions slide."""
    for sliding in (False, True):
        table = Table(SessionLease(ttl=10, sliding=sliding))
        table.bind("a", Binding("w"), None, 100)
        table.use("a", 105)
        assert (table.find("a", 112) is not None) == sliding


def test_the_longest_life_ends_a_sliding_one() -> None:
    """`longest` ends a sliding session however often it is used."""
    table = Table(SessionLease(ttl=10, sliding=True, longest=25))
    table.bind("a", Binding("w"), None, 0)
    assert [table.use("a", now) is not None for now in (8, 16, 24, 25)] == [True, True, True, False]


def test_one_who_expects_wrongly_changes_nothing() -> None:
    """A wrong expectation changes nothing, and the actual session is returned."""
    table = Table()
    assert table.bind("a", Binding("v"), "w", 0) == (None, False)
    first, done = table.bind("a", Binding("w"), None, 0)
    assert first is not None
    assert done
    assert table.bind("a", Binding("v"), None, 0) == (first, False)
    assert first.worker == "w"
    assert table.bind("a", Binding("v"), "w", 0) == (first, True)
    assert first.worker == "v"


def test_the_one_unused_for_longest_makes_room() -> None:
    """The least recently used session is evicted, not the oldest."""
    table = Table(SessionLease(most=2))
    table.bind("a", Binding("w"), None, 0)
    table.bind("b", Binding("w"), None, 1)
    table.use("a", 2)
    table.bind("c", Binding("w"), None, 3)
    assert [key for key, _ in table.items(9, 3)] == ["a", "c"]
    assert table.evicted == 1


def test_what_expired_makes_room_first() -> None:
    """An expired session makes room, so no live one is evicted."""
    table = Table(SessionLease(ttl=10, most=2))
    table.bind("a", Binding("w"), None, 0)
    table.bind("b", Binding("w"), None, 8)
    table.bind("c", Binding("w"), None, 11)
    assert (table.evicted, table.expired) == (0, 1)


def test_a_sweep_drops_what_has_expired_and_nothing_else() -> None:
    """Sessions that were closed or extended are passed over."""
    table = Table(SessionLease(ttl=10, sliding=True))
    for key in "abcd":
        table.bind(key, Binding("w"), None, 0)
    table.use("b", 5)
    table.close("c", 5)
    assert table.sweep(10) == 2
    assert [key for key, _ in table.items(9, 10)] == ["b"]
    assert table.sweep(15) == 1


def test_a_sweep_puts_back_only_so_many_that_have_moved() -> None:
    """Putting back all moved ends at once would take long, and they are not what it looks for."""
    table = Table(SessionLease(ttl=10, sliding=True))
    for number in range(5 * MOVED):
        table.bind(str(number), Binding("w"), None, 0)
    for number in range(1, 5 * MOVED):
        table.use(str(number), 9)
    assert table.sweep(10.0) <= 1
    assert sum(end == 10 for end, _ in table._ends) >= 4 * MOVED - 1
    assert [key for key, _ in table.items(1, 10)] == ["1"]
    for _ in range(5):
        table.sweep(10.0)
    assert (len(table), table.expired) == (5 * MOVED - 1, 1)


def test_a_sweep_drops_only_so_many() -> None:
    """All may expire at once, and a sweep is part of the request that starts the next session."""
    table = Table(SessionLease(ttl=10, most=5 * DROPPED))
    for number in range(5 * DROPPED):
        table.bind(str(number), Binding("w"), None, 0)
    table.bind("next", Binding("w"), None, 10)
    assert len(table) == 4 * DROPPED + 1
    assert table.use("4999", 10) is None
    sweeps = 0
    while table.due(10):
        table.sweep(10)
        sweeps += 1
    assert (sweeps, len(table), table.expired, table.evicted) == (4, 1, 5 * DROPPED, 0)


def test_uses_put_back_what_has_moved() -> None:
    """Each use puts some moved ends back, so that sweeps keep up."""
    table = Table(SessionLease(ttl=10, sliding=True))
    keys = [str(number) for number in range(1000)]
    for key in keys:
        table.bind(key, Binding("w"), None, 0)
    for now in (9, 18):
        for key in keys:
            table.use(key, now)
    assert min(end for end, _ in table._ends) > 10


def test_ends_of_closed_sessions_do_not_pile_up() -> None:
    """The heap stays small however many are opened and closed within one lifetime."""
    table = Table(SessionLease(ttl=inf))
    for number in range(10_000):
        table.bind(str(number), Binding("w"), None, 0)
        table.close(str(number), 0)
    assert len(table._ends) < 200


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["use", "bind", "close", "sweep"]),
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
        model = {one: told for one, told in model.items() if now < told[1]}
        if what == "use":
            found = table.use(key, now)
            assert (found is not None) == (key in model)
            if key in model:
                created, expires = model.pop(key)
                if sliding:
                    expires = max(expires, min(now + 6, created + 15))
                model[key] = (created, expires)
        elif what == "bind":
            table.bind(key, Binding("w"), None, now)
            if key not in model:
                if len(model) == 4:
                    del model[next(iter(model))]
                model[key] = (now, now + 6)
            else:  # the caller goes to its worker: a use
                model[key] = model.pop(key)
        elif what == "close":
            assert (table.close(key, now) is not None) == (model.pop(key, None) is not None)
        table.sweep(now)
        assert [one for one, _ in table.items(99, now)] == list(model)
