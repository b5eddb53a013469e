"""What was sent lately: at least some seconds old, at most twice as many."""

from strategies.recent import Recent

KEYS = [1, 2, 3]


def test_it_counts_for_its_time_and_not_for_twice_of_it() -> None:
    """Also while others are sent meanwhile."""
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
    """Nobody has asked for longer than twice the time."""
    recent = Recent(1 << 20, 10.0)
    recent.insert(KEYS, "a", 100.0)
    assert recent.held(KEYS, 200.0) == {}


def test_what_was_refused_is_taken_back() -> None:
    """And a worker that is gone is forgotten."""
    recent = Recent(1 << 20, 10.0)
    refused = recent.insert(KEYS, "a", 100.0)
    taken = recent.insert(KEYS, "b", 100.0)
    recent.settle(refused, took=False)
    recent.settle(taken, took=True)
    assert recent.held(KEYS, 101.0) == {"b": 3}
    recent.forget("b")
    assert recent.held(KEYS, 101.0) == {}
