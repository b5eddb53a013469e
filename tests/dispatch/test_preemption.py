"""Which requests may be taken back, and where; and what a request keeps of it."""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import cast

import pytest
from msgspec.structs import replace

from router.api.endpoints import ENDPOINTS
from router.api.request import parse
from router.dispatch.preemption import (
    MAX_COMPARED,
    MIN_JUDGED_TOKENS,
    Preemptions,
    Rescue,
    Running,
    resumable,
)
from router.dispatch.request import InferenceRequest
from router.fleet.pool import Pool
from router.fleet.worker import LOSSES, LOSSES_S, ProbeState, Worker
from router.http.exchange import ClientConnection, Exchange
from router.http.validation import RequestHead
from router.sessions.use import SessionUse
from strategies.api import Candidate, Cost, Decision, Prompt
from tests.fleet.fleets import fleet, prompt


@dataclass
class Asked:
    """What counts of a request."""

    pool: Pool
    prompt: Prompt
    session: SessionUse | None = None
    resumable: bool = True
    preemptions: int = 0
    started: float = 7.0
    suspected: bool = False


class Sent:
    """A request that may be preempted."""

    def __init__(self, job: Asked, there: Candidate) -> None:
        self.request, self.choice = cast("InferenceRequest", job), there
        self.kept: list[int] = []
        """What its worker kept each time that it was preempted."""
        self.moved: list[bool] = []
        """Whether it was suspected, each time that it was moved from a stuck worker."""

    def preempt(self, kept_tokens: int) -> None:
        """Note it."""
        self.kept.append(kept_tokens)

    def rescue(self, *, suspected: bool) -> None:
        """Note it."""
        self.moved.append(suspected)


def preempting(strategy: str = "prefixaware") -> tuple[Preemptions, Pool, Worker]:
    """Everything that decides about it: a pool, and one of its workers, which reuses prefixes."""
    found = Preemptions()
    found.change(2)
    pool = fleet(strategy, workers=2).pools[0]
    for each in pool.workers:
        each.become(ProbeState.READY, "")
    worker = pool.workers[0]
    worker.reuses = True
    return found, pool, worker


def eject(worker: Worker) -> None:
    """Let requests to a worker fail until it is ejected."""
    for _ in range(5):
        worker.breaker.failed(monotonic(), worker.breaker.began(monotonic()), "5xx")
    assert not worker.breaker.closed


def since(found: Preemptions, worker: Worker, asked: Asked) -> float | None:
    """Return since when the request may be preempted."""
    return found.since(cast("InferenceRequest", asked), worker)


def test_who_may_be_preempted() -> None:
    """One that can be resumed, outside of sessions, not too often, at a worker that answers and
    keeps what it has computed, if prefixes count."""
    found, pool, worker = preempting()
    stream = replace(prompt("text"), stream=True)
    assert since(found, worker, Asked(pool, stream)) == 7.0
    early = replace(stream, stream=False)  # its first byte comes before its prefill
    assert since(found, worker, Asked(pool, early)) is None
    assert since(found, worker, Asked(pool, stream, preemptions=1)) == 7.0
    assert since(found, worker, Asked(pool, stream, preemptions=2)) is None
    assert since(found, worker, Asked(pool, stream, resumable=False)) is None
    assert since(found, worker, Asked(pool, stream, session=cast("SessionUse", object()))) is None
    worker.losses, worker.lost_at = LOSSES, monotonic()
    assert since(found, worker, Asked(pool, stream)) is None
    worker.losses = 0
    eject(worker)
    assert since(found, worker, Asked(pool, stream)) is None
    found, pool, worker = preempting("leastload")
    assert since(found, worker, Asked(pool, stream)) is None


def test_who_may_be_moved_from_a_worker_that_is_stuck() -> None:
    """Also one that may not be preempted because its worker keeps nothing, or is on trial, or
    because prefixes do not count."""
    found, pool, worker = preempting("leastload")
    worker.reuses = False
    eject(worker)
    stream = replace(prompt("text"), stream=True)
    there = Candidate(worker, Cost(prefill=50.0))

    def may(asked: Asked) -> bool:
        booking = pool.book(asked.prompt, there, monotonic(), since=since(found, worker, asked))
        assert booking.since is None
        found.begin(booking, cast("Running", Sent(asked, there)))
        return found.of(booking) is not None

    assert may(Asked(pool, stream))
    assert not may(Asked(pool, replace(stream, stream=False)))
    assert not may(Asked(pool, stream, preemptions=2))
    assert not may(Asked(pool, stream, resumable=False))
    assert not may(Asked(pool, stream, session=cast("SessionUse", object())))
    assert found.workers() == {worker}
    found.change(0)
    assert len(found) == 0


@pytest.mark.parametrize(("model", "may"), [("m", False), ("only here", True)])
def test_those_that_stay_at_a_stuck_worker_hide_none_behind_them(
    monkeypatch: pytest.MonkeyPatch, model: str, *, may: bool
) -> None:
    """However many may not be moved or no other worker serves, and though the oldest was suspected
    before."""
    monkeypatch.setattr("router.dispatch.preemption.TICK_S", 0.0)
    found, pool, worker = preempting()
    worker.models = {"m": {}, "only here": {}}
    there = Candidate(worker, Cost(prefill=0.1))

    def rank(_: Pool, __: Prompt, others: Sequence[Worker]) -> Decision:
        return Decision([Candidate(others[0], Cost(prefill=0.1))], "")

    def send(text: str, model: str = "m", *, may: bool = True, suspected: bool = False) -> Sent:
        own = replace(prompt(text), model=model)
        asked = Asked(pool, own, resumable=may, suspected=suspected)
        sent = Sent(asked, there)
        found.begin(pool.book(own, there, monotonic() - 60.0), cast("Running", sent))
        return sent

    async def play() -> None:
        Rescue(found, rank)
        stay = [send("first", suspected=True)]
        stay += [send(f"text {n}", model, may=may) for n in range(MAX_COMPARED + 1)]
        last = send("last", suspected=True)
        async with asyncio.timeout(10):
            while not last.moved:  # noqa: ASYNC110 - there is no event to wait for
                await asyncio.sleep(0.01)
        assert last.moved == [False]
        assert [one.moved for one in stay] == [[]] * len(stay)

    asyncio.run(play())


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/audio/transcriptions"])
def test_uploads_are_not_taken_back(path: str, *, stream: bool) -> None:
    """Nothing is predicted of them, so they always seem late; nor are answers in one piece."""
    endpoint = next(one for one in ENDPOINTS.values() if one.path == path)
    body, kind = b'{"stream":%s}' % str(stream).lower().encode(), b""
    if endpoint.form:
        field = b'--x\r\ncontent-disposition: form-data; name="stream"\r\n\r\n%s\r\n--x--\r\n'
        body, kind = field % str(stream).encode(), b"multipart/form-data; boundary=x"
    request = parse(endpoint, body, kind)
    assert request.stream is stream
    assert resumable(endpoint, request) == (stream and not endpoint.form)


def test_only_one_that_waits_for_its_answer_gives_way() -> None:
    """Once, and only to a request whose cost counts on it."""
    found, pool, worker = preempting()
    asked = Asked(pool, prompt("text " * 60_000))
    there = Candidate(worker, Cost(prefill=50.0), 100)
    # (Prompts that differ: one that another counts on would not give way.)
    other = Asked(pool, prompt("else " * 60_000))
    bookings = [
        pool.book(one.prompt, there, monotonic(), since=monotonic()) for one in (asked, other)
    ]
    sent = [Sent(one, there) for one in (asked, other)]
    for booking, one in zip(bookings, sent, strict=True):
        found.begin(booking, cast("Running", one))
    found.end(bookings[1])
    short = cast("InferenceRequest", Asked(pool, prompt("other")))
    assert not found.make_way(short, worker, Candidate(worker, Cost(prefill=0.1)))
    assert sent[0].kept == []
    counting = Candidate(worker, Cost(prefill=0.1), preempts=2)
    assert not found.make_way(short, worker, counting)  # none of another process
    assert (len(sent[0].kept), sent[1].kept, found.count) == (1, [], 1)
    assert worker.load.in_flight == 1
    assert len(found) == 0
    assert 100 <= sent[0].kept[0] < asked.prompt.tokens
    assert not found.make_way(short, worker, counting)
    assert found.count == 1


def test_requests_of_other_processes_give_way_too() -> None:
    """Those have to take them back. One of this process is taken back for another process's only
    while it waits for its first byte."""
    found, pool, worker = preempting()
    asked = Asked(pool, prompt("text " * 60_000))
    there = Candidate(worker, Cost(prefill=50.0), 100)
    now = monotonic()
    theirs = pool.book(asked.prompt, there, now, elsewhere=True, since=now)
    counting = Candidate(worker, Cost(prefill=0.1), preempts=1)
    found_theirs = found.make_way(
        cast("InferenceRequest", Asked(pool, prompt("other"))), worker, counting
    )
    assert (found_theirs, found.count) == ([theirs], 0)
    worker.load.release(theirs, now)
    ours = pool.book(asked.prompt, there, now, since=now)
    sent = Sent(asked, there)
    found.give_way(ours)
    assert found.count == 0
    found.begin(ours, cast("Running", sent))
    for _ in range(2):
        found.give_way(ours)
        assert (len(sent.kept), found.count, worker.load.in_flight) == (1, 1, 0)
    kept = pool.book(asked.prompt, there, now, since=None)  # it may only be moved
    found.begin(kept, cast("Running", sent))
    found.give_way(kept)
    assert worker.load.in_flight == 1


def test_one_that_has_little_left_by_then_does_not_give_way() -> None:
    """Whatever its worker had to do when the decision was made."""
    found, pool, worker = preempting()
    asked = Asked(pool, prompt("text " * 60_000))
    there = Candidate(worker, Cost(prefill=50.0))
    since = monotonic() - 49.0
    booking = pool.book(asked.prompt, there, since, since=since)
    sent = Sent(asked, there)
    found.begin(booking, cast("Running", sent))
    stale = Candidate(worker, Cost(prefill=0.1), preempts=1)
    found.make_way(cast("InferenceRequest", Asked(pool, prompt("other"))), worker, stale)
    assert (sent.kept, found.count) == ([], 0)


@pytest.mark.parametrize(
    ("reuses", "reused", "losses", "keeps"),
    [
        (None, False, 0, False),
        (False, False, 0, False),
        (True, False, 0, True),
        (None, True, 0, True),
        (True, True, LOSSES - 1, True),
        (True, True, LOSSES, False),
    ],
)
def test_which_workers_keep_what_they_compute(
    reuses: bool | None, reused: bool, losses: int, *, keeps: bool
) -> None:
    """Those that say so or have reported cached tokens, until requests find nothing of it."""
    one = fleet(workers=1)
    (worker,) = one.workers
    worker.reuses, worker.reused = reuses, reused
    worker.losses, worker.lost_at = losses, monotonic()
    assert worker.keeps is keeps
    one.restarted(worker)
    assert worker.keeps is bool(reuses), "a new process has to show it anew"


def test_a_worker_that_keeps_nothing_is_told_by_what_is_found(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Less than half of what there must be, several times in a row; once there is a warning."""
    caplog.set_level(logging.WARNING, "warmroute.fleet")
    found, _, worker = preempting()
    counts = []
    for expected, cached in (
        (MIN_JUDGED_TOKENS - 1, 0),
        (MIN_JUDGED_TOKENS, MIN_JUDGED_TOKENS // 2 - 1),
        (MIN_JUDGED_TOKENS - 1, MIN_JUDGED_TOKENS - 1),
        (MIN_JUDGED_TOKENS, MIN_JUDGED_TOKENS // 2 - 1),
        (MIN_JUDGED_TOKENS, MIN_JUDGED_TOKENS // 2),
        *[(MIN_JUDGED_TOKENS, 0)] * (LOSSES + 1),
    ):
        found.judge(worker, expected, cached)
        counts.append(worker.losses)
    assert counts == [0, 1, 1, 2, 0, *range(1, LOSSES + 2)]
    assert caplog.text.count("does not keep what it has computed") == 1
    assert "no request is preempted there for 10 minutes" in caplog.text


def test_a_worker_that_kept_nothing_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    """After a while, as a full cache may have been the reason. One loss is enough then: requests
    that were sent meanwhile do not give way, either."""
    caplog.set_level(logging.WARNING, "warmroute.fleet")
    found, pool, worker = preempting()
    for _ in range(LOSSES):
        found.judge(worker, MIN_JUDGED_TOKENS, 0)
    asked = Asked(pool, replace(prompt("text"), stream=True))
    assert since(found, worker, asked) is None
    worker.lost_at -= LOSSES_S
    assert since(found, worker, asked) == asked.started
    there = Candidate(worker, Cost(prefill=50.0))
    booking = pool.book(asked.prompt, there, monotonic(), since=asked.started)
    found.begin(booking, cast("Running", Sent(asked, there)))
    found.judge(worker, MIN_JUDGED_TOKENS, 0)
    assert since(found, worker, asked) is None
    assert booking.since is None
    assert caplog.text.count("does not keep what it has computed") == 2
    worker.lost_at -= LOSSES_S
    found.judge(worker, MIN_JUDGED_TOKENS, MIN_JUDGED_TOKENS)
    assert worker.losses == 0


def request() -> InferenceRequest:
    """A request that has not been sent yet."""
    return InferenceRequest(
        next(iter(ENDPOINTS.values())),
        Exchange(
            cast("ClientConnection", object()), RequestHead("POST", "1.1", [], "/"), keep=True
        ),
        fleet().pools[0],
        prompt("text"),
        None,
        identity=b"1",
        tenant="",
        workers=(),
        started=0.0,
        session=None,
        salt=b"",
    )


def test_what_was_held_first_counts_from_where_it_gave_way_first() -> None:
    """Where it was moved from a worker that is stuck, nothing that was computed there counts."""
    asked, (worker,) = request(), fleet(workers=1).workers
    asked.moved(worker, suspected=False)
    assert (asked.last, asked.held_first, asked.preemptions) == (None, 0, 1)
    assert asked.prompt.resumed
    asked.gave_way(worker, 100)
    asked.gave_way(worker, 200)
    assert (asked.last, asked.held_first, asked.preemptions) == (worker, 100, 3)


def test_who_was_suspected_stays_suspected() -> None:
    """Also if it is parsed again, because its pool has changed."""
    asked, again, (worker,) = request(), request(), fleet(workers=1).workers
    asked.moved(worker, suspected=True)
    asked.moved(worker, suspected=False)
    assert asked.suspected
    asked.renew(again)
    assert asked.suspected
    assert asked.prompt.resumed


def test_it_does_not_go_back_at_once() -> None:
    """The first decision after a move leaves out the stuck worker, also if it is parsed again."""
    asked, (worker, other) = request(), fleet(workers=2).workers
    asked.moved(worker, suspected=False)
    asked.renew(request())
    assert asked.elsewhere([worker, other]) == [other]
    assert asked.elsewhere([worker, other]) == [worker, other]
