"""What a soak calls a failure of the router, and what it does not."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from benchmarks.harness.connection import Reply
from benchmarks.soak.fleet import RECOVERY_S, Book, Chaos, Timeline, book
from benchmarks.soak.judge import NEVER, End, Failure, Tally, Twice, asked_twice, lost, verdict
from benchmarks.soak.report import SoakReport, complaints
from benchmarks.soak.requests import Request, WantedAnswer, answer, events
from benchmarks.soak.run import Gauges, Sample, State
from benchmarks.soak.worker import Entry, FaultKind, read_book

SENT, ENDED = 100.0, 101.0
LONG_BEFORE = SENT - RECOVERY_S - 1
JSON, STREAM = WantedAnswer(stream=False, length=30), WantedAnswer(stream=True, length=4)


@pytest.mark.parametrize("seed", range(3))
def test_one_worker_is_always_well(seed: int) -> None:
    """Whatever fails, one has been well for long enough that the router knows it."""
    chaos, random = Chaos(Random(seed)), Random(seed)
    since: list[float | None] = [0.0] * 4
    until: list[float] = [0.0] * 4
    busy: list[FaultKind | None] = [None] * 4
    seen: set[FaultKind] = set()
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
            if act.kind is not FaultKind.SLOW:
                since[act.worker] = None
            seen.add(act.kind)
        assert any(then is not None and now - then >= RECOVERY_S for then in since)
    assert seen == set(FaultKind)


def worker(
    since: float | None = None,
    until: float | None = None,
    *,
    name: str = "one",
    read: Entry | None = None,
    stays: bool = True,
) -> Book:
    """Return a worker that was well from `since` until `until` and has read a request."""
    timeline = Timeline()
    if since is not None:
        timeline.well(since)
    if until is not None:
        timeline.unwell(until)
    return book(name, timeline, [read] if read else [], stays=stays)


def failure(worker: str = "") -> Failure:
    """Return a request that failed, at `worker` if the answer names one."""
    return Failure(7, SENT, ENDED, End.FAILED, 503, "no_worker", worker, "")


READ, REFUSED = Entry(7, refused=False, at=SENT), Entry(7, refused=True, at=SENT)


@pytest.mark.parametrize(
    ("books", "is_lost"),
    [
        ([worker(LONG_BEFORE)], True),
        ([worker(LONG_BEFORE, SENT + 0.5)], False),
        ([worker(SENT - 1)], False),
        ([worker(LONG_BEFORE, stays=False)], False),
        ([worker(read=REFUSED), worker(LONG_BEFORE)], True),
        ([worker(LONG_BEFORE, SENT + 0.5, read=READ), worker(LONG_BEFORE)], False),
        ([worker(LONG_BEFORE, read=READ)], True),
    ],
    ids=[
        "one was well and did not get it",
        "one failed meanwhile",
        "one was well only just before",
        "one that comes and goes",
        "refused where it was read",
        "read by one that failed",
        "read by one that was well",
    ],
)
def test_which_failures_are_the_routers(books: list[Book], is_lost: bool) -> None:
    """A request that could have been answered, by a worker that was there, is lost."""
    assert bool(lost([failure()], books)) == is_lost


def test_what_a_killed_worker_never_read() -> None:
    """It is unknown whether a worker read it that was killed during the request."""
    killed, other = worker(LONG_BEFORE, SENT + 0.5, name="killed"), worker(LONG_BEFORE)
    killed.timeline.blind(SENT + 0.5, SENT + 0.6)
    for name, is_lost in (("killed", False), ("one", True), ("", True)):
        assert bool(lost([failure(name)], [killed, other])) == is_lost


@pytest.mark.parametrize(("death", "died"), [(SENT + 0.05, True), (SENT - 1, False), (101, False)])
def test_asked_twice(death: float, *, died: bool) -> None:
    """Two workers read it and did not refuse it, unless the first was killed in between."""
    one = worker(read=READ)
    one.timeline.died(death, death + 0.01)
    other = worker(read=Entry(7, refused=False, at=SENT + 0.1), name="other")
    full = worker(read=REFUSED, name="full")
    assert asked_twice([other, one, full]) == [Twice(7, "one", "other", died=died)]


def error(code: str) -> bytes:
    """Return an error in OpenAI's format."""
    return json.dumps({"error": {"message": "Worker one died.", "code": code}}).encode()


def reply(body: bytes, status: int = 200, *, complete: bool = True) -> Reply:
    """Return what a client received."""
    received = Reply()
    received.status, received.body, received.complete = status, body, complete
    return received


def test_how_a_request_ended() -> None:
    """Only the complete answer to this very request is accepted."""
    chat, stream = Request(5, b'{"model":"m"}', JSON), Request(5, b'{"model":"m"}', STREAM)
    body, chunks = answer(5, chat.body, JSON), events(5, stream.body, STREAM)
    begun = b"".join(chunks[:2])
    for request, received, end in (
        (chat, reply(body), End.ANSWERED),
        (Request(6, chat.body, JSON), reply(body), End.WRONG),
        (Request(5, b"{}", JSON), reply(body), End.WRONG),
        (chat, reply(body[:-1]), End.WRONG),
        (chat, reply(body[:-1], complete=False), End.CUT),
        (chat, reply(b"", 0, complete=False), End.CUT),
        (chat, reply(error("no_worker"), 503), End.FAILED),
        (chat, reply(error("overloaded"), 503), End.FULL),
        (chat, reply(error("queue_full"), 429), End.FULL),
        (chat, reply(error("model_not_found"), 404), End.WRONG),
        (stream, reply(b"".join(chunks)), End.ANSWERED),
        (stream, reply(begun), End.WRONG),
        (stream, reply(begun + b"data: " + error("worker_failed") + b"\n\n"), End.TOLD),
    ):
        assert verdict(request, received)[0] is end
    tally = Tally()
    tally.judge("chat", chat, SENT, reply(error("worker_failed"), 502))
    assert [failure.worker for failure in tally.failures] == ["one"]


def test_a_book_that_was_torn(tmp_path: Path) -> None:
    """A worker was killed while writing a record: those before it count."""
    path = tmp_path / "book"
    assert read_book(path) == []
    path.write_bytes(READ.record() + REFUSED.record() + b"\x01")
    assert read_book(path) == [READ, REFUSED]


def state(descriptors: int = 20, **gauges: int) -> State:
    """Return a router's state, at rest unless gauges are given."""
    values = {"in_flight": 0, "booked_tokens": 0, "waiting": 0, "tasks": 9, "denied": 0, **gauges}
    sample = Sample(at=0.0, memory_mb=80.0, descriptors=descriptors, cpu_s=1.0)
    return State(sample, Gauges(**values), Counter(listens=1))


def report(growth: float = 0.0) -> SoakReport:
    """Return ten minutes in which all was well, while memory grows by `growth` MB a minute."""
    return SoakReport(
        minutes=10,
        tally=Tally(),
        lost=(),
        twice=(Twice(1, "a", "b", died=True),),
        faults=(),
        reloads=0,
        load_share=0.5,
        machine_share=1.0,
        samples=[Sample(60.0 * at, 80 + growth * at, 30, at) for at in range(11)],
        tasks=[(60.0 * at, 9.0) for at in range(11)],
        before=state(),
        after=state(),
        complaints=(),
        exit_code=0,
    )


def wrong(end: End) -> Tally:
    """Return a tally of one request that ended as none may."""
    tally = Tally()
    tally.violation("chat", end, "oh")
    return tally


@pytest.mark.parametrize(
    "bad",
    [
        report(1.5),
        replace(report(), lost=(failure(),)),
        replace(report(), twice=(Twice(1, "a", "b", died=False),)),
        replace(report(), after=state(descriptors=21)),
        *(
            replace(report(), after=state(**{gauge: 10}))
            for gauge in ("tasks", "in_flight", "booked_tokens", "waiting")
        ),
        *(replace(report(), tally=wrong(end)) for end in NEVER),
        replace(report(), complaints=("Traceback",)),
        replace(report(), exit_code=1),
    ],
)
def test_each_problem_is_told(bad: SoakReport) -> None:
    """One sentence for each; none where all is well."""
    assert report().problems() == report(0.5).problems() == []
    assert len(bad.problems()) == 1


def test_complaints_of_a_log() -> None:
    """Only faults of the router itself, not what workers did."""
    log = "WARNING worker one closed\nTask exception was never retrieved\nTraceback (most recent"
    assert complaints(log) == log.splitlines()[1:]
