"""Plays a row on a connection of its own, and sees what comes of it."""

import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tests.http.raw.answers import Answer, Answers
from tests.http.raw.request import get, post
from tests.http.raw.row import End, Row, Wait

#: Seconds in which nothing may come. Too short, it lets a fault pass; it never invents one.
SILENCE_S = 0.02
#: Seconds after which a connection that should be closed, and is silent, is let go.
LET_GO_S = 0.25

#: Sent after a row: who answers it has kept the connection.
_PROBE = get(b"x-request-id: probe")

Cut = Callable[[bytes], Iterable[bytes]]


@dataclass(frozen=True, slots=True)
class Seen:
    """What a client saw."""

    answers: list[Answer]
    interims: list[Answer]
    kept: bool
    early: bool
    """Something came while half a request was waited for."""
    broken: str | None


def whole(data: bytes) -> Iterable[bytes]:
    """All in one piece."""
    return (data,)


def bytewise(data: bytes) -> Iterable[bytes]:
    """Every byte by itself."""
    return (data[at : at + 1] for at in range(len(data)))


def play(port: int, row: Row, cut: Cut = whole) -> Seen:
    """Send what the row says and read what comes, then see whether another request is answered."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answers = Answers(client, head=row.head)
        early = False
        interims = finals = 0  # waited for so far; what was read may hold the next one too
        for step in row.sent:
            if step is Wait.INTERIM:
                interims += 1
                answers.read_until(interims=interims)
            elif step is Wait.FINAL:
                finals += 1
                answers.read_until(finals)
            elif step is Wait.SILENCE:
                early |= answers.read(seconds=SILENCE_S)
            else:
                _send(client, cut(step))
        answers.read_until(max(len(outcome.answers) for outcome in row.allowed))
        count = len(answers.final)
        _send(client, (_PROBE,))
        _after(client, answers, count, row)
    final = answers.final
    kept = bool(final) and final[-1].values(b"x-request-id") == [b"probe"]
    if kept:
        final = final[:-1]
    return Seen(final, answers.interims, kept, early, answers.broken)


def _after(client: socket.socket, answers: Answers, count: int, row: Row) -> None:
    """Read the answer to the probe, or the end."""
    must_keep = all(outcome.end is End.KEPT for outcome in row.allowed)
    if not must_keep and not answers.read(seconds=LET_GO_S):
        try:
            client.shutdown(socket.SHUT_WR)  # it may be reading on, only to throw it away
        except OSError:
            return
    answers.read_until(count + 1)
    if answers.final[count:] and answers.final[-1].values(b"x-request-id") != [b"probe"]:
        answers.read_until(count + 2)  # one answer too many; is there the probe's as well?


def _send(client: socket.socket, pieces: Iterable[bytes]) -> None:
    try:
        for piece in pieces:
            client.sendall(piece)
            time.sleep(0)  # lets the router, in a thread of this process, take it by itself
    except ConnectionError:
        pass  # it was closed, as the rest of the row may expect


def serves(port: int) -> bool:
    """A proper request on a new connection is answered by the worker."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(post(b"x-request-id: after", b"connection: close"))
        answers = Answers(client, head=False)
        while not answers.closed:
            if not answers.read():
                return False
    return [answer.status for answer in answers.final] == [200]
