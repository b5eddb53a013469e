"""A decision in words."""

import pytest

from strategies.api import FREE, Candidate, Cost, Decision, Prompt
from strategies.cost.prefill import Loading
from strategies.explain import Rejection, explain, gives_way, terms, words
from tests.strategies.workers import untold

PROMPT = Prompt("m", 8000, (1, 2, 3))


HOLDER = Candidate(untold("a"), Cost(wait=2.0, prefill=0.1), 7500)
IDLE = Candidate(untold("b"), Cost(prefill=0.8))
FULL = Candidate(untold("b"), Cost(prefill=0.1), 7900)
REFUSED = Rejection(429, "full", "later")
LOADS = Candidate(untold("b"), Cost(prefill=0.8), 7500, Loading(0.15, 500, 7000))


@pytest.mark.parametrize(
    ("order", "reason", "said"),
    [
        ((HOLDER, IDLE), "prefix", ("a holds most of the prompt, 7500 of 8000", "wait, 2.000 s")),
        ((IDLE, HOLDER), "spill", ("a holds more, 7500 of 8000", "costs 1.300 s more", "wait")),
        ((HOLDER, FULL), "spill", ("b holds more, 7900 of 8000", "says that it is full")),
        ((IDLE,), "cold", ("No worker holds any of the prompt; b is cheapest", "prefill, 0.800 s")),
        ((LOADS,), "l2", ("b need not compute 7500 of 8000 tokens: 500 come from L1 and 7000",)),
        ((IDLE, HOLDER), "spill (gap)", ("a holds more, 7500 of 8000",)),
        ((IDLE,), "load", ("b is least loaded",)),
        ((Candidate(untold("c"), FREE),), "turn", ("It is c's turn.",)),
        ((Candidate(untold("c"), FREE),), "other", ("c was chosen.",)),
    ],
)
def test_the_reason_is_said(
    order: tuple[Candidate, ...], reason: str, said: tuple[str, ...]
) -> None:
    """The explanation is one or two sentences with the numbers that decided."""
    sentence = words(PROMPT, Decision(order, reason))
    assert all(part in sentence for part in said), sentence


@pytest.mark.parametrize(
    ("order", "reason", "said"),
    [
        ((IDLE, HOLDER), "bind", "The session starts on b. Most of the cost of b is prefill"),
        ((HOLDER, IDLE), "session", "The session is bound to a. Most of the cost of a is wait"),
        ((IDLE,), "rebind", "The session has lost its worker; b takes it over. "),
        ((IDLE, HOLDER), "spill", "The session moves to b: a costs 1.300 s more. "),
        ((IDLE,), "spill", "The session moves to b: a has no room. "),
        ((Candidate(untold("c"), FREE),), "session", "The session is bound to c."),
        (
            (Candidate(untold("c"), FREE), Candidate(untold("a"), FREE)),
            "spill",
            "The session moves to c: a says that it is full.",
        ),
    ],
)
def test_the_reason_in_a_session(order: tuple[Candidate, ...], reason: str, said: str) -> None:
    """In a session, the explanation names the session and not the least loaded worker."""
    prompt = Prompt("m", 8000, (1, 2, 3), bound="a")
    assert words(prompt, Decision(order, reason)).startswith(said)


@pytest.mark.parametrize(
    ("doubt", "said"),
    [
        ("", ""),
        (" (gap)", " b was judged by what was sent there: some of its events were missed."),
        (" (of a plug-in)", ""),
    ],
)
def test_a_doubt_is_explained(doubt: str, said: str) -> None:
    """A word in brackets after the reason, if it is known, is a sentence in words."""
    plain = words(PROMPT, Decision((IDLE, HOLDER), "spill"))
    assert words(PROMPT, Decision((IDLE, HOLDER), f"spill{doubt}")) == plain + said


def test_all_is_told() -> None:
    """An explanation lists every worker's terms, best first, with their sum."""
    found = explain(PROMPT, Decision((IDLE, HOLDER), "spill"))
    assert (found.model, found.tokens, found.blocks, found.reason) == ("m", 8000, 3, "spill")
    assert [(term.worker, term.total) for term in found.workers] == [("b", 0.8), ("a", 2.1)]


@pytest.mark.parametrize(
    ("preempts", "said"),
    [
        (0, ""),
        (1, " 1 longer prompt gives way to it there."),
        (2, " 2 longer prompts give way to it there."),
    ],
)
def test_who_gives_way_is_said(preempts: int, said: str) -> None:
    """On the first worker, after the reason; and in the terms of each worker."""
    first = Candidate(untold("b"), Cost(prefill=0.8), preempts=preempts)
    other = Candidate(untold("a"), Cost(prefill=0.9), preempts=3)
    decision = Decision((first, other), "load")
    assert gives_way(decision) == said
    found = explain(PROMPT, decision)
    assert found.words == words(PROMPT, decision) + said
    assert [term.preempts for term in found.workers] == [preempts, 3]


@pytest.mark.parametrize(
    ("costs", "said"),
    [
        ((0.4, 0.5, 0.3), "a is the less loaded of the two drawn; the other is b. Most"),
        ((0.4, 0.4, 0.3), "a and b were drawn and cost the same; it is a's turn. Most"),
    ],
)
def test_two_that_were_drawn(costs: tuple[float, ...], said: str) -> None:
    """Nothing is said of those that were not drawn, which may be less loaded."""
    ranked = [
        Candidate(untold(name), Cost(decode=seconds))
        for name, seconds in zip("abc", costs, strict=True)
    ]
    assert words(PROMPT, Decision(ranked, "load", drawn=True)).startswith(said)


def test_terms_stand_in_a_line() -> None:
    """Terms are written as in the response header; nothing if no costs were compared."""
    assert terms(HOLDER) == (
        "held=7500; wait=2.000s; prefill=0.100s; price=0.000s; decode=0.000s; room=0.000s; "
        "home=0.000s"
    )
    assert terms(Candidate(untold("c"), FREE)) == ""
