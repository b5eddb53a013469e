"""The table of sessions: who is where, and for how long."""

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from router.sessions.table import MOVED, Binding, Lease, Table


def test_expiry_is_strict() -> None:
    """At its very end a session is over, the first time already."""
    table = Table(Lease(ttl=10))
    table.bind("a", Binding("w"), None, 100)
    assert table.use("a", 109.999) is not None
    assert table.use("a", 110) is None
    assert (len(table), table.expired) == (0, 1)


def test_use_does_not_lengthen_it() -> None:
    """Unless sessions slide."""
    for sliding in (False, True):
        table = Table(Lease(ttl=10, sliding=sliding))
        table.bind("a", Binding("w"), None, 100)
        table.use("a", 105)
        assert (table.find("a", 112) is not None) == sliding


def test_the_longest_life_ends_a_sliding_one() -> None:
    """However often it is used."""
    table = Table(Lease(ttl=10, sliding=True, longest=25))
    table.bind("a", Binding("w"), None, 0)
    assert [table.use("a", now) is not None for now in (8, 16, 24, 25)] == [True, True, True, False]


def test_one_who_expects_wrongly_changes_nothing() -> None:
    """And is told how it is."""
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
    """Not the oldest."""
    table = Table(Lease(most=2))
    table.bind("a", Binding("w"), None, 0)
    table.bind("b", Binding("w"), None, 1)
    table.use("a", 2)
    table.bind("c", Binding("w"), None, 3)
    assert [key for key, _ in table.items(9, 3)] == ["a", "c"]
    assert table.evicted == 1


def test_what_expired_makes_room_first() -> None:
    """Nobody who is alive has to go for it."""
    table = Table(Lease(ttl=10, most=2))
    table.bind("a", Binding("w"), None, 0)
    table.bind("b", Binding("w"), None, 8)
    table.bind("c", Binding("w"), None, 11)
    assert (table.evicted, table.expired) == (0, 1)


def test_a_sweep_drops_what_has_expired_and_nothing_else() -> None:
    """Closed and renewed ones are passed over."""
    table = Table(Lease(ttl=10, sliding=True))
    for key in "abcd":
        table.bind(key, Binding("w"), None, 0)
    table.use("b", 5)
    table.close("c", 5)
    assert table.sweep(10) == 2
    assert [key for key, _ in table.items(9, 10)] == ["b"]
    assert table.sweep(15) == 1


def test_a_sweep_puts_back_only_so_many_that_have_moved() -> None:
    """They are not what it looks for, and all of them at once would take long."""
    table = Table(Lease(ttl=10, sliding=True))
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


def test_uses_put_back_what_has_moved() -> None:
    """So that sweeps do not fall behind."""
    table = Table(Lease(ttl=10, sliding=True))
    keys = [str(number) for number in range(1000)]
    for key in keys:
        table.bind(key, Binding("w"), None, 0)
    for now in (9, 18):
        for key in keys:
            table.use(key, now)
    assert min(end for end, _ in table._ends) > 10


def test_ends_of_closed_sessions_do_not_pile_up() -> None:
    """However many are opened and closed within one lifetime."""
    table = Table(Lease(ttl=inf))
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
    """With every rule written down once more, the slow way."""
    lease = Lease(ttl=6, sliding=sliding, longest=15, most=4)
    table, now = Table(lease), 0.0
    model: dict[str, tuple[float, float]] = {}  # created, expires; by last use
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
            else:  # whoever is told of it goes there
                model[key] = model.pop(key)
        elif what == "close":
            assert (table.close(key, now) is not None) == (model.pop(key, None) is not None)
        table.sweep(now)
        assert [one for one, _ in table.items(99, now)] == list(model)
