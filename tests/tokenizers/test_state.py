"""When a tokenizer is trusted: once every ready worker was asked, while none differs."""

from types import SimpleNamespace
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from router.rendering.tokens import LoadedTokenizer
from router.tokenizers.sources import Origin, SourceKind, TokenizerSearch
from router.tokenizers.state import (
    DATED_RECHECK_INTERVAL_S,
    MAX_RETRY_INTERVAL_S,
    RETRY_INTERVAL_S,
    Recount,
    SourceCase,
)
from router.tokenizers.verify import Agreement, Verdict, describe

AGREES = Verdict(Agreement.AGREES, "")
UNVERIFIED = Verdict(Agreement.UNVERIFIED, "")
DIFFERS = Verdict(Agreement.DIFFERS, "", describe("chat", b"", b"\0" * 4, None))
VOLUME, OTHER = (
    cast("LoadedTokenizer", SimpleNamespace(sure=sure, exact=SimpleNamespace(dated=False)))
    for sure in (True, False)
)
DATED = cast("LoadedTokenizer", SimpleNamespace(sure=True, exact=SimpleNamespace(dated=True)))


def case(kind: SourceKind = SourceKind.FOLDER) -> SourceCase:
    """Return a case that has found its tokenizer, if it looks for one."""
    made = SourceCase("p", Origin(kind, "/m"), TokenizerSearch(kind, "/m"), {"m": "/m"})
    made.found(VOLUME if kind is SourceKind.FOLDER else None, "")
    return made


def trusts(one: SourceCase, workers: str = "", ready: str = "") -> bool:
    """Decide, if there are workers; return whether it is trusted now."""
    if workers:
        one.decide(workers, ready or workers)
    return one.trusted


def test_everyone_is_asked_first() -> None:
    """A worker that joins later does not end trust before it is asked."""
    one = case()
    assert one.waiting("ab", 0) == ["a", "b"]
    one.judged("a", AGREES, 0)
    assert not trusts(one, "abc", "ab")
    one.judged("b", UNVERIFIED, 0)
    assert trusts(one, "abc", "ab")
    assert trusts(one, "abc")
    assert one.waiting("abc", 0) == ["c"]


def test_one_has_to_confirm() -> None:
    """If engines may tokenize differently, one worker has to agree; the others then need not be
    verifiable."""
    one = case()
    one.found(OTHER, "")
    one.judged("a", UNVERIFIED, 0)
    assert not trusts(one, "ab", "a")
    assert one.reason == "no worker confirms what engines may tokenize another way"
    one.judged("b", AGREES, 0)
    assert trusts(one, "ab")


def test_another_tokenizer() -> None:
    """A new tokenizer has to be verified again; an unchanged one does not."""
    one = case()
    one.judged("a", AGREES, 0)
    one.decide("a", "a")
    one.taking.add("a")
    one.found(VOLUME, "")
    assert trusts(one)
    one.found(OTHER, "")
    assert not trusts(one)
    assert not one.asked
    assert not one.taking


def test_when_workers_are_asked_again() -> None:
    """Workers that agree are asked again only when in doubt; others at growing intervals, up to an
    hour."""
    one = case()
    one.judged("a", AGREES, 0)
    assert one.waiting("a", 1e9) == []
    one.doubt()
    assert one.waiting("a", 0) == ["a"]
    now = 0.0
    pauses = []
    for _ in range(20):
        one.judged("b", UNVERIFIED, now)
        pauses.append(one.asked["b"].due - now)
        now = one.asked["b"].due
        assert one.waiting("b", now - 1) == []
        assert one.waiting("b", now) == ["b"]
    assert pauses[:3] == [RETRY_INTERVAL_S, 2 * RETRY_INTERVAL_S, 4 * RETRY_INTERVAL_S]
    assert pauses[-1] == MAX_RETRY_INTERVAL_S


def test_dates_are_looked_at_again() -> None:
    """The worker's day may begin at another time than ours; trust continues while it is asked."""
    one = case()
    one.found(DATED, "")
    for now in (0.0, 5000.0):
        one.judged("a", AGREES, now)
        one.decide("a", "a")
        assert one.waiting("a", now + DATED_RECHECK_INTERVAL_S - 1) == []
        assert one.waiting("a", now + DATED_RECHECK_INTERVAL_S) == ["a"]
        assert trusts(one)


def test_what_came_up_while_a_worker_was_asked() -> None:
    """It is asked again at once; after an answer that leaves it open, some minutes later."""
    one, silent = case(), Verdict(Agreement.AGREES, "", left_out=None)
    one.judged("a", silent, 0, choosing=False)
    assert one.waiting("a", 1e9) == []
    one.choose()
    assert one.waiting("a", 0) == ["a"]
    one.judged("a", silent, 1, choosing=False)
    assert one.waiting("a", 1) == ["a"]
    one.judged("a", silent, 2, choosing=True)
    assert one.waiting("a", 2 + DATED_RECHECK_INTERVAL_S - 1) == []
    assert one.waiting("a", 2 + DATED_RECHECK_INTERVAL_S) == ["a"]
    one.judged("a", AGREES, 3, choosing=True)
    assert one.waiting("a", 1e9) == []


def test_tools_of_which_none_may_be_chosen() -> None:
    """Nothing is known of them if workers could not be asked or differ."""
    one = case()
    one.judged("a", UNVERIFIED, 0)
    assert trusts(one, "a")
    known = [one.left_out]
    for worker, left_out in ("b", False), ("c", True):
        one.judged(worker, Verdict(Agreement.AGREES, "", left_out=left_out), 0)
        known.append(one.left_out)
    assert known == [None, False, None]


def test_asking_workers_themselves() -> None:
    """One worker that can tokenize is enough."""
    one = case(SourceKind.WORKER)
    one.judged("a", UNVERIFIED, 0)
    assert not trusts(one, "ab")
    assert one.reason == "no worker answers"
    one.judged("b", AGREES, 0)
    assert trusts(one, "ab")
    assert (one.agrees("a"), one.agrees("b"), one.agrees("c")) == (False, True, False)


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from([AGREES, UNVERIFIED, DIFFERS])),
        max_size=20,
    ),
    st.sets(st.sampled_from("abc")),
)
def test_never_with_one_that_differs(told: list[tuple[str, Verdict]], ready: set[str]) -> None:
    """Whatever is found, in whatever order."""
    one = case()
    last: dict[str, Agreement] = {}
    for worker, verdict in told:
        one.judged(worker, verdict, 0)
        if not (last.get(worker) is Agreement.DIFFERS and verdict is UNVERIFIED):
            last[worker] = verdict.state
        one.decide("abc", ready)
        if Agreement.DIFFERS in last.values():
            assert not trusts(one)
        assert {name: asked.verdict.state for name, asked in one.asked.items()} == last


def test_counts_that_are_others() -> None:
    """Miscounts are examined when there are new ones, at growing intervals; a counter that restarts
    at zero is handled."""
    recount = Recount()
    assert not recount.is_due(0, 0)
    assert recount.is_due(1, 0)
    assert not recount.is_due(1, 1000)
    assert recount.is_due(2, 1000)
    assert not recount.is_due(3, 1119)
    assert recount.is_due(3, 1121)
    assert not recount.is_due(0, 9999)
    assert recount.is_due(1, 9999)
