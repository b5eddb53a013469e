"""Outliers among workers, told from bad requests, in long random sequences."""

from random import Random

import pytest

from router.fleet.outliers import Doubt, Outliers
from strategies.api import Candidate, Cost, Decision
from strategies.cost.load import Load
from strategies.cost.prefill import Pace

PATH, FAILURES = "/v1/chat/completions", 5


class Member:
    """A worker that answers all requests, or none."""

    def __init__(self, name: str, *, broken: bool = False) -> None:
        self.name = name
        self.broken = broken
        self.doubts: dict[str, Doubt] = {}
        self.load = Load()
        self.pace = Pace()
        self.sent = self.failed = 0
        """Requests it got, and good ones among them that it failed."""
        self.outlier = False

    kv_tokens: int | None = None
    room_tokens: int | None = None


class Play:
    """Four workers; requests of which a share is bad, decided in turn, that end in any order."""

    def __init__(self, seed: int, *, at_once: int, broken: int = 0) -> None:
        self.random = Random(seed)
        self.members = [Member(f"w{place}", broken=place < broken) for place in range(4)]
        self.outliers = Outliers()
        self.outliers.failures = FAILURES
        self.at_once = at_once
        self.flying: list[tuple[Candidate, tuple[Doubt, ...], bool, float]] = []

    def run(self, requests: int, share: float, *, prefer: bool = False) -> None:
        """Send requests; with `prefer`, the bad ones all would rather go to the first worker."""
        for number in range(requests):
            bad = self.random.random() < share
            self.send(float(number), bad=bad, prefer=prefer and bad)
            while len(self.flying) >= self.at_once:
                self.end(float(number))

    def send(self, now: float, *, bad: bool, prefer: bool) -> None:
        """Decide and send a request, as the router does."""
        order = self.random.sample(self.members, k=4)
        cost = {one: Cost(wait=float(prefer and one is not self.members[0])) for one in order}
        order.sort(key=lambda one: cost[one].total)
        able = [one for one in order if not one.outlier]
        first = self.outliers.first(PATH, able) if self.outliers else able
        last = [one for one in able if one not in first]
        candidates = [Candidate(one, cost[one]) for one in (*first, *last)]
        decision = Decision(candidates, "test", aside=len(last))
        choice = candidates[0]
        member = choice.worker
        assert isinstance(member, Member)
        instead = self.outliers.sent(PATH, choice, decision) if self.outliers else ()
        member.sent += 1
        member.failed += member.broken and not bad
        self.flying.append((choice, tuple(instead), bad or member.broken, now))

    def end(self, now: float) -> None:
        """End one of the requests under way."""
        flying, outliers = self.flying, self.outliers
        choice, instead, fails, sent = flying.pop(self.random.randrange(len(flying)))
        member = choice.worker
        assert isinstance(member, Member)
        if fails:
            outliers.bad(PATH, member, instead, now, "it failed", sent=sent, refusal=False)
            member.outlier |= outliers.outlier(PATH, member)
        elif outliers:
            outliers.answering(PATH, member, instead)
            outliers.good(PATH, member)


@pytest.mark.parametrize("at_once", [1, 8])
@pytest.mark.parametrize("share", [0.02, 0.2, 0.5, 0.8])
def test_bad_requests_make_no_outliers(share: float, at_once: int) -> None:
    """However many requests are bad: all workers that are well get their part."""
    for seed in range(3):
        play = Play(seed, at_once=at_once)
        play.run(2_000, share)
        assert not any(member.outlier for member in play.members)
        assert all(member.sent > 400 for member in play.members)


@pytest.mark.parametrize("at_once", [1, 8])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.1])
@pytest.mark.parametrize("broken", [1, 2])
def test_a_worker_that_fails_all_is_one(broken: int, share: float, at_once: int) -> None:
    """Workers that fail everything are found, and fail few requests until then."""
    for seed in range(3):
        play = Play(seed, at_once=at_once, broken=broken)
        play.run(2_000, share)
        assert [member.outlier for member in play.members] == [
            *[True] * broken,
            *[False] * (4 - broken),
        ]
        assert sum(member.failed for member in play.members) < 40 * broken


def test_no_worker_answers() -> None:
    """If none answers anything, there is no outlier, and all are asked."""
    play = Play(1, at_once=4, broken=4)
    play.run(2_000, 0.0)
    assert not any(member.outlier for member in play.members)
    assert all(member.sent > 400 for member in play.members)


def test_what_left_the_pool_is_not_counted() -> None:
    """Without the worker that was in doubt nothing is, and a restart ends every doubt."""
    outliers, one, other = Outliers(), Member("one"), Member("other")
    outliers.bad(PATH, one, (), 1.0, "it failed", sent=0.0, refusal=False)
    assert outliers
    outliers.follow([other])
    assert not outliers
    outliers.follow([one, other])
    assert outliers
    assert outliers.first(PATH, [one, other]) == [other]
    outliers.forget(one)
    assert not outliers
    assert outliers.first(PATH, [one, other]) == [one, other]
