"""What a soak calls a failure of the router, and what it does not."""

import json
from collections import Counter
from dataclasses import replace

import pytest

from benchmarks.harness.connection import Reply
from benchmarks.soak.fleet import RECOVERY_S, Book, Timeline, book
from benchmarks.soak.judge import NEVER, End, Failure, SoakTally, Twice, lost, verdict
from benchmarks.soak.report import SoakReport
from benchmarks.soak.requests import SoakRequest, WantedAnswer, answer, events
from benchmarks.soak.run import Gauges, ProcessSample, State
from benchmarks.soak.worker import BookEntry

SENT, ENDED = 100.0, 101.0
LONG_BEFORE = SENT - RECOVERY_S - 1
JSON, STREAM = WantedAnswer(stream=False, length=30), WantedAnswer(stream=True, length=4)


def worker(
    since: float | None = None,
    until: float | None = None,
    *,
    name: str = "one",
    read: BookEntry | None = None,
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


READ, REFUSED = BookEntry(7, refused=False, at=SENT), BookEntry(7, refused=True, at=SENT)


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
    chat, stream = SoakRequest(5, b'{"model":"m"}', JSON), SoakRequest(5, b'{"model":"m"}', STREAM)
    body, chunks = answer(5, chat.body, JSON), events(5, stream.body, STREAM)
    begun = b"".join(chunks[:2])
    for request, received, end in (
        (chat, reply(body), End.ANSWERED),
        (SoakRequest(6, chat.body, JSON), reply(body), End.WRONG),
        (SoakRequest(5, b"{}", JSON), reply(body), End.WRONG),
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
    tally = SoakTally()
    tally.judge("chat", chat, SENT, reply(error("worker_failed"), 502))
    assert [failure.worker for failure in tally.failures] == ["one"]


def state(descriptors: int = 20, **gauges: int) -> State:
    """Return a router's state, at rest unless gauges are given."""
    values = {"in_flight": 0, "booked_tokens": 0, "waiting": 0, "tasks": 9, "denied": 0, **gauges}
    sample = ProcessSample(at=0.0, memory_mb=80.0, descriptors=descriptors, cpu_s=1.0)
    return State(sample, Gauges(**values), Counter(listens=1))


def report(growth: float = 0.0) -> SoakReport:
    """Return ten minutes in which all was well, while memory grows by `growth` MB a minute."""
    return SoakReport(
        minutes=10,
        tally=SoakTally(),
        lost=(),
        twice=(Twice(1, "a", "b", died=True),),
        faults=(),
        reloads=0,
        load_share=0.5,
        machine_share=1.0,
        samples=[ProcessSample(60.0 * at, 80 + growth * at, 30, at) for at in range(11)],
        tasks=[(60.0 * at, 9.0) for at in range(11)],
        before=state(),
        after=state(),
        complaints=(),
        exit_code=0,
    )


def wrong(end: End) -> SoakTally:
    """Return a tally of one request that ended as none may."""
    tally = SoakTally()
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
