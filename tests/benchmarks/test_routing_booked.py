"""The baseline of booked seconds: what it compares, and that goals are measured against it."""

import pytest
from msgspec.structs import replace

from benchmarks.routing_booked import BookedSeconds
from benchmarks.routing_goals import Found, goals
from benchmarks.routing_policies import policy_named
from strategies.queue import Queue
from tests.benchmarks.peers import busy, prompt, seats
from tests.benchmarks.test_routing_goals import cell, found


def test_the_least_booked_seconds_win() -> None:
    """Answers count for nothing."""
    fleet = seats()
    rule = BookedSeconds(fleet)
    busy(fleet[0], 1, 0.2)
    busy(fleet[1], 1, 0.1)
    for _ in range(50):  # many answers, and no prefill
        fleet[2].load.first_byte(fleet[2].load.book(0.0, 0.0, kv_tokens=5_000), 0.0)
    asked = prompt()
    choices = rule.rank(asked, fleet, 0.0).candidates
    assert [choice.worker.name for choice in choices] == ["w2", "w1", "w0"]
    own = fleet[0].pace.prefill(asked.tokens, 0)
    assert [choice.cost.total for choice in choices] == pytest.approx([own, own + 0.1, own + 0.2])


def test_equals_take_turns() -> None:
    """Of equally busy workers, the one that was chosen longest ago is next."""
    fleet = seats()
    rule, turns = BookedSeconds(fleet), []
    for turn in range(1, 7):
        seat = rule.rank(prompt(), fleet, 0.0).candidates[0].worker
        seat.load.turn = turn
        turns.append(seat.name)
    assert turns == ["w0", "w1", "w2"] * 2


def test_what_is_promised_to_held_requests_counts() -> None:
    """A held request that goes first is waited for; one that comes later is not."""
    fleet = seats(2)
    own = fleet[0].pace.prefill(prompt().tokens, 0)
    fleet[0].load.promises.append((own / 2, own / 2))
    fleet[1].load.promises.append((own * 2, own * 2))
    choices = BookedSeconds(fleet).rank(prompt(), fleet, 0.0).candidates
    assert [choice.worker.name for choice in choices] == ["w1", "w0"]
    assert [choice.cost.wait for choice in choices] == pytest.approx([0.0, own / 2])


def test_it_is_held_as_ours_are() -> None:
    """So the goals compare cost terms, and not ways of waiting."""
    assert policy_named("booked seconds").hold is Queue is policy_named("prefixaware").hold


@pytest.mark.parametrize("measure", ["ttft_s", "ttft_p99_s"])
@pytest.mark.parametrize(("times", "met"), [(1.019, True), (1.021, False)])
def test_goals_compare_with_it(measure: str, times: float, *, met: bool) -> None:
    """Without reuse, mean and p99 are to be within 2 % of it."""
    ours = replace(cell("no_reuse", "prefixaware"), **{measure: times})
    results: Found = found(ours, cell("no_reuse", "booked seconds"))
    names = {"ttft_s": "mean TTFT, s", "ttft_p99_s": "p99 TTFT, s"}
    (goal,) = (
        one
        for one in goals(results)
        if one.name == names[measure] and one.against.startswith("booked seconds")
    )
    assert goal.met is met
