"""How the clients of a soak judge what they receive."""

import itertools
import json
from pathlib import Path
from random import Random

import pytest

from benchmarks.harness.connection import Reply
from benchmarks.soak.judge import End, Tally, verdict
from benchmarks.soak.report import complaints
from benchmarks.soak.requests import (
    LONGEST_TALK,
    Ask,
    Conversation,
    Source,
    Wish,
    answer,
    events,
    identity,
    number_of,
)
from benchmarks.soak.worker import Entry, read_book

JSON, STREAM = Wish(stream=False, length=30), Wish(stream=True, length=4)


def ask(wish: Wish, number: int = 5) -> Ask:
    """Return a request."""
    return Ask(number, b'{"model":"m"}', wish)


def reply(body: bytes, status: int = 200, *, complete: bool = True, worker: str = "") -> Reply:
    """Return what a client received."""
    made = Reply()
    made.status, made.body, made.complete = status, body, complete
    made.headers = {b"x-warmroute-worker": worker.encode()} if worker else {}
    return made


def error(code: str | None, message: str = "oh") -> bytes:
    """Return an error in OpenAI's format."""
    body = {"error": {"message": message, "type": "x", "param": None, "code": code}}
    return json.dumps(body).encode()


@pytest.mark.parametrize("wish", [JSON, STREAM])
def test_its_own_answer(wish: Wish) -> None:
    """Only the complete answer to this very request is accepted."""
    one, other = ask(wish), ask(wish, 6)
    body = answer(one.number, one.body, wish)
    assert verdict(one, reply(body))[0] is End.ANSWERED
    assert verdict(other, reply(body))[0] is End.WRONG
    assert verdict(one._replace(body=b"{}"), reply(body))[0] is End.WRONG
    assert verdict(one, reply(body[:-1]))[0] is End.WRONG
    assert verdict(one, reply(body[:-1], complete=False))[0] is End.CUT


def test_comments_are_skipped() -> None:
    """The router puts comments into a stream that is slow to begin."""
    one = ask(STREAM)
    body = b": waiting\n\n: waiting\n\n" + answer(one.number, one.body, STREAM)
    assert verdict(one, reply(body))[0] is End.ANSWERED


def test_a_failure_told_in_the_stream() -> None:
    """Then the last event is an error."""
    one = ask(STREAM)
    begun = b"".join(events(one.number, one.body, STREAM)[:2])
    told = reply(begun + b"data: " + error("worker_failed") + b"\n\n")
    assert verdict(one, told) == (End.TOLD, "worker_failed", "oh")
    full = reply(b": waiting\n\ndata: " + error("overloaded") + b"\n\n")
    assert verdict(one, full)[0] is End.FULL
    assert verdict(one, reply(begun))[0] is End.WRONG


@pytest.mark.parametrize(
    ("status", "code", "end"),
    [
        (503, "no_worker", End.FAILED),
        (500, None, End.FAILED),
        (503, "overloaded", End.FULL),
        (429, "queue_full", End.FULL),
        (404, "model_not_found", End.WRONG),
    ],
)
def test_refusals(status: int, code: str | None, end: End) -> None:
    """Some errors are allowed for a valid request, others are not."""
    assert verdict(ask(JSON), reply(error(code), status))[0] is end


def test_no_answer() -> None:
    """A connection that closed without a response."""
    assert verdict(ask(JSON), reply(b"", 0, complete=False))[0] is End.CUT


def test_a_failure_names_its_worker() -> None:
    """By the router's message, or by the header of a response that had begun."""
    tally = Tally()
    tally.judge("x", ask(JSON), 1.0, reply(error("worker_failed", "Worker one died."), 502))
    tally.judge("x", ask(JSON), 1.0, reply(b"{", complete=False, worker="two"))
    assert tally.judge("x", ask(JSON), 1.0, reply(answer(5, ask(JSON).body, JSON)))
    assert [failure.worker for failure in tally.failures] == ["one", "two"]
    assert tally.ends == {("x", End.FAILED): 1, ("x", End.CUT): 1, ("x", End.ANSWERED): 1}


def test_ids_and_wishes_come_back() -> None:
    """They are read as they were written."""
    assert number_of(identity(123)) == 123
    assert number_of(b"0123") is None
    for wish in (JSON, STREAM):
        assert Wish.read(wish.line().partition(b": ")[2].strip()) == wish


def test_requests_are_what_they_say() -> None:
    """JSON of the requested size, chunked or not, numbered in order."""
    source = Source(Random(1))
    one, other = source.ask((4000,)), source.stream((400,))
    assert (one.number, other.number) == (1, 2)
    assert len(one.body) == 4000
    assert json.loads(other.body)["stream"] is True
    *chunks, last = one.chunked(3)[1:]
    assert b"".join(chunk.split(b"\r\n", 1)[1][:-2] for chunk in chunks) == one.body
    assert last == b"0\r\n\r\n"


def test_a_conversation_grows_and_begins_anew() -> None:
    """Every turn begins with the one before it, until the conversation is too long."""
    talk, random = Conversation(1), Random(1)
    bodies = [json.loads(talk.body(random, stream=False))["messages"] for _ in range(60)]
    grown = sum(later[: len(one)] == one for one, later in itertools.pairwise(bodies))
    assert 40 < grown < 59
    assert all(len(json.dumps(body)) < LONGEST_TALK + 20_000 for body in bodies)


def test_a_book_that_was_torn(tmp_path: Path) -> None:
    """A worker was killed while writing a line: the lines before it count."""
    path = tmp_path / "book"
    assert read_book(path) == []
    entries = [Entry(9, refused=False, at=1.5), Entry(4, refused=True, at=2.5)]
    path.write_bytes(b"".join(entry.line() for entry in entries) + b"\x01")
    assert read_book(path) == entries


def test_complaints_of_a_log() -> None:
    """Only faults of the router itself, not what workers did."""
    log = "WARNING worker one closed\nTask exception was never retrieved\nTraceback (most recent"
    assert complaints(log) == log.splitlines()[1:]
