"""Sessions cost no more than the docs say."""

from benchmarks.sessions import bytes_of, filled, lookups, path_cost, stage, sweep


def test_bytes_of_a_session() -> None:
    """docs/sessions.md says about 340 bytes including the id."""
    alone, with_id = bytes_of(10_000)
    assert alone < 330
    assert with_id < 420


def test_a_sweep_looks_only_at_what_has_expired() -> None:
    """Other sessions are not touched, so a sweep's cost does not depend on their number."""
    table, names = filled(5000, 100)
    for name in names[100:]:
        table._sessions[name] = None  # type: ignore[assignment]  # looking at it would fail
    assert table.sweep(1200.5) == 100
    assert sweep(2000, 20).expired == 20


def test_a_request_in_a_session_is_a_request() -> None:
    """Requests with and without a session are served and measured."""
    with stage() as running:
        cost = path_cost(running, 64, 1)
    assert cost.within > 0
    assert cost.ratio > 0


def test_lookups_are_all_counted() -> None:
    """Times come in ascending order, one for each lookup."""
    took = lookups(1000)
    assert took == sorted(took)
    assert len(took) == 50_000
