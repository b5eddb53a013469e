"""The check of the virtual clock against sockets: what is run, and what agrees."""

import pytest

from benchmarks.routing.columns import SMALL
from benchmarks.routing.drive import Drive, Fleet, times_as_fast
from benchmarks.routing.sockets import APART, SHIFT_S, Seen, compared, shifted
from benchmarks.routing.workloads import Work, faster, no_reuse
from simulator.engine.profiles import Profile
from strategies.api import NoOptions
from strategies.policies.round_robin import RoundRobin

WORK = Work("first", no_reuse(1, 8.0).talks[:200])


def seconds(profile: Profile, work: Work) -> list[tuple[float, float]]:
    """Return when each request of `work` has its first and its last token, by round robin."""
    done = Drive(Fleet(profile, 2), lambda _: RoundRobin(NoOptions())).run(work)
    return [(placed.first_s, placed.ended_s) for placed in done]


def test_all_takes_as_many_times_less() -> None:
    """Where nothing depends on seconds, as in round robin, only the unit of time differs."""
    usual, fast = seconds(SMALL, WORK), seconds(times_as_fast(SMALL, 4.0), faster(WORK, 4.0))
    assert len(usual) == 200
    assert [4.0 * s for times in fast for s in times] == pytest.approx(
        [s for t in usual for s in t]
    )


def test_requests_are_shifted_a_little_and_stay_in_order() -> None:
    """The first run has them as they are, and the others differ from each other."""
    assert shifted(WORK.talks, 0) == list(WORK.talks)
    runs = [shifted(WORK.talks, number) for number in (1, 2)]
    assert runs[0] != runs[1]
    at = {talk.session: talk.at_s for talk in WORK.talks}
    for run in runs:
        assert [talk.at_s for talk in run] == sorted(talk.at_s for talk in run)
        assert all(0.0 <= talk.at_s - at[talk.session] <= SHIFT_S for talk in run)


@pytest.mark.parametrize(("off", "word"), [(APART - 0.01, "agrees"), (APART + 0.01, "differs")])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_times_have_to_agree(off: float, word: str, sign: float) -> None:
    """However far hit rates are apart, which are chance where prompts are not looked at."""
    row, good = compared("x", Seen(1.0 + sign * off, 0.5), Seen(1.0, 0.1))
    assert row[-1] == word
    assert good == (word == "agrees")
