"""Recent placements: kept for at least some seconds, and at most twice as long."""

from strategies.recent import Recent

KEYS = [1, 2, 3]


def test_it_counts_for_its_time_and_not_for_twice_of_it() -> None:
    """A placement counts for its time and expires, also while others are inserted."""
    recent = Recent(1 << 20, 10.0)
    recent.held(KEYS, 100.0)
    recent.insert(KEYS, "a", 105.0)
    assert recent.held(KEYS, 114.9) == {"a": 3}
    recent.insert(KEYS[:1], "b", 114.9)
    assert recent.held(KEYS, 115.0) == {"a": 3, "b": 1}
    assert recent.held(KEYS, 125.0) == {"b": 1}
    assert recent.held(KEYS, 135.1) == {}
    assert len(recent) == 0


def test_a_long_pause_forgets_all() -> None:
    """After a pause longer than twice the time, nothing is left."""
    recent = Recent(1 << 20, 10.0)
    recent.insert(KEYS, "a", 100.0)
    assert recent.held(KEYS, 200.0) == {}


def test_what_was_refused_is_taken_back() -> None:
    """A refused placement does not count, and neither does one on a worker that is forgotten."""
    recent = Recent(1 << 20, 10.0)
    refused = recent.insert(KEYS, "a", 100.0)
    taken = recent.insert(KEYS, "b", 100.0)
    recent.settle(refused, took=False)
    recent.settle(taken, took=True)
    assert recent.held(KEYS, 101.0) == {"b": 3}
    recent.forget("b")
    assert recent.held(KEYS, 101.0) == {}
