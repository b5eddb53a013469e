"""The fleet on the virtual clock that is as fast as the one behind the sockets."""

import pytest

from benchmarks.routing.columns import SMALL
from benchmarks.routing.drive import Drive
from benchmarks.routing.fleet import Fleet
from benchmarks.routing.generated import no_reuse
from benchmarks.routing.policies import policy_named
from benchmarks.routing.sockets import APART, SHIFT_S, Seen, _compared, _shifted, _times_as_fast
from benchmarks.routing.work import Work, faster
from simulator.profiles import Profile

WORK = Work("first", no_reuse(1, 8.0).talks[:200])


def seconds(profile: Profile, work: Work) -> list[tuple[float, float]]:
    """Return when each request of `work` has its first and its last token, by round robin."""
    policy = policy_named("round robin")
    done = Drive(Fleet(profile, 2), lambda seats: policy.make(seats, 1), None).run(work)
    return [(placed.first_s, placed.ended_s) for placed in done]


def test_all_takes_as_many_times_less() -> None:
    """Where nothing depends on seconds, as in round robin, only the unit of time differs."""
    usual, fast = seconds(SMALL, WORK), seconds(_times_as_fast(SMALL, 4.0), faster(WORK, 4.0))
    assert len(usual) == 200
    assert [4.0 * s for times in fast for s in times] == pytest.approx(
        [s for t in usual for s in t]
    )


def test_requests_are_shifted_a_little_and_stay_in_order() -> None:
    """The first run has them as they are, and the others differ from each other."""
    assert _shifted(WORK.talks, 0) == list(WORK.talks)
    runs = [_shifted(WORK.talks, number) for number in (1, 2)]
    assert runs[0] != runs[1]
    at = {talk.session: talk.at_s for talk in WORK.talks}
    for run in runs:
        assert [talk.at_s for talk in run] == sorted(talk.at_s for talk in run)
        assert all(0.0 <= talk.at_s - at[talk.session] <= SHIFT_S for talk in run)


@pytest.mark.parametrize("off", [APART - 0.01, APART + 0.01])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_both_have_to_agree(off: float, sign: float) -> None:
    """It is no agreement if only times or only hits do."""
    here, there = Seen(1.0, 0.5), 1.0 + sign * off
    for seen in (Seen(there, 0.5), Seen(1.0, 0.5 * there)):
        row, good = _compared("x", seen, here)
        assert good == (off < APART) == (row[-1] == "agrees")
