"""When a soak fails, and what it reports then."""

from collections import Counter
from dataclasses import replace

import pytest

from benchmarks.soak.judge import NEVER, End, Failure, Tally, Twice
from benchmarks.soak.report import MOST_GROWTH, Report
from benchmarks.soak.run import Gauges, Look, Sample

REST = Look(
    Sample(at=0.0, memory_mb=80.0, descriptors=20, cpu_s=1.0),
    Gauges(in_flight=0, booked_tokens=0, waiting=0, tasks=9, denied=0),
    Counter(listens=1),
)
LOST = Failure(1, 0.0, 1.0, End.CUT, 0, "", "", "closed")


def report(growth: float = 0.0) -> Report:
    """Return ten minutes in which all was well, while memory grows by `growth` MB a minute."""
    minutes = [float(at) for at in range(11)]
    return Report(
        minutes=10,
        tally=Tally(),
        lost=(),
        twice=(Twice(1, "a", "b", died=True),),
        faults=(),
        reloads=0,
        load_share=0.5,
        machine_share=1.0,
        samples=[Sample(60 * at, 80 + growth * at, 30, at) for at in minutes],
        tasks=[(60 * at, 9.0) for at in minutes],
        before=REST,
        after=REST,
        complaints=(),
        exit_code=0,
    )


@pytest.mark.parametrize(
    ("growth", "grows"), [(0.0, False), (-3.0, False), (0.9, False), (MOST_GROWTH, True)]
)
def test_memory(growth: float, *, grows: bool) -> None:
    """Growth of 1 MB a minute or more is a problem; all else in the report is well."""
    problems = report(growth).problems()
    assert problems == ([f"memory grows by {growth:.2f} MB a minute"] if grows else [])


def test_what_is_left_open() -> None:
    """Descriptors and tasks must return to their counts; new descriptors are named."""
    more = REST.sample._replace(descriptors=21)
    left = replace(report(), after=REST._replace(sample=more, ends=Counter(listens=1, worker=1)))
    assert left.problems() == ["descriptors are left open: 1 worker"]
    said = REST.said._replace(tasks=10)
    left = replace(report(), after=REST._replace(said=said))
    assert left.problems() == ["tasks are left: 9 before, 10 after"]


@pytest.mark.parametrize("booked", ["in_flight", "booked_tokens", "waiting"])
def test_what_is_left_booked(booked: str) -> None:
    """Nothing may stay booked once no request is running."""
    said = REST.said._replace(**{booked: 1})
    (problem,) = replace(report(), after=REST._replace(said=said)).problems()
    assert problem.startswith("something is booked")


def test_what_must_not_happen_to_requests() -> None:
    """Each kind of failure is a problem of its own."""
    assert len(replace(report(), lost=(LOST,)).problems()) == 1
    assert len(replace(report(), twice=(Twice(1, "a", "b", died=False),)).problems()) == 1
    for end in NEVER:
        tally = Tally()
        tally.strange("chat", end, "oh")
        assert replace(report(), tally=tally).problems() == [f"1 requests: {end.value}"]


def test_its_log_and_its_end() -> None:
    """A fault in the router's log or an exit code is a problem."""
    assert len(replace(report(), complaints=("Traceback",)).problems()) == 1
    assert len(replace(report(), exit_code=1).problems()) == 1
