"""Which worker fails next in a soak test, and which one was well when."""

from random import Random

import pytest

from benchmarks.soak.fleet import RECOVERY_S, Chaos, Timeline
from benchmarks.soak.worker import Kind


@pytest.mark.parametrize("seed", range(5))
def test_somebody_is_always_well(seed: int) -> None:
    """Whatever fails, one worker has been well for long enough that the router knows it."""
    chaos, random = Chaos(Random(seed)), Random(seed)
    since: list[float | None] = [0.0] * 4
    until: list[float] = [0.0] * 4
    busy: list[Kind | None] = [None] * 4
    seen: set[Kind] = set()
    now = RECOVERY_S
    for _ in range(3000):
        now += random.expovariate(2.0)
        for place, end in enumerate(until):
            if busy[place] is not None and now >= end:
                busy[place] = None
                since[place] = since[place] if since[place] is not None else now
        act = chaos.next(now, since, busy)
        if act is not None:
            assert busy[act.worker] is None
            busy[act.worker], until[act.worker] = act.kind, now + act.seconds
            if act.kind is not Kind.SLOW:
                since[act.worker] = None
            seen.add(act.kind)
        assert any(then is not None and now - then >= RECOVERY_S for then in since)
        assert sum(kind is Kind.FULL for kind in busy) <= 2
    assert seen == set(Kind)


def test_nobody_fails_while_all_are_needed() -> None:
    """With one well worker and others that are not, there is no new fault."""
    assert Chaos(Random(1)).next(100.0, [0.0, None, None], [None, Kind.KILL, Kind.FULL]) is None


def test_a_spell_of_health() -> None:
    """A spell lasts from `well` to `unwell`, and covers any part of it."""
    timeline = Timeline()
    assert not timeline.well_from(0, 1)
    timeline.well(10)
    timeline.well(11)  # it was already
    assert timeline.well_from(10, 99)
    assert not timeline.well_from(9, 99)
    timeline.unwell(20)
    timeline.unwell(21)
    assert timeline.well_from(12, 20)
    assert not timeline.well_from(12, 20.5)
    timeline.well(30)
    assert not timeline.well_from(15, 31)
    assert timeline.since == 30


def test_blind_moments() -> None:
    """They count if they overlap with a request."""
    timeline = Timeline()
    timeline.blind(10, 12)
    assert timeline.blind_within(11, 11.5)
    assert timeline.blind_within(0, 10)
    assert not timeline.blind_within(12.1, 20)
