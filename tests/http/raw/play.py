"""Plays a row on a new connection and records what comes back."""

import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tests.http.raw.answers import Answer, Answers
from tests.http.raw.request import get, post
from tests.http.raw.row import End, Row, Wait

#: Seconds in which nothing may come. If too short, a fault is missed, but none is made up.
SILENCE_S = 0.02
#: Seconds of silence after which the client half-closes a connection that may be closed by now.
LET_GO_S = 0.25

#: Sent after a row: if it is answered, the connection was kept.
_PROBE = get(b"x-request-id: probe")

Cut = Callable[[bytes], Iterable[bytes]]


@dataclass(frozen=True, slots=True)
class Seen:
    """What the client saw."""

    answers: list[Answer]
    interims: list[Answer]
    kept: bool
    early: bool
    """Whether something came although only a part of a request had been sent."""
    broken: str | None


def whole(data: bytes) -> Iterable[bytes]:
    """Send everything in one piece."""
    return (data,)


def bytewise(data: bytes) -> Iterable[bytes]:
    """Send every byte by itself."""
    return (data[at : at + 1] for at in range(len(data)))


def play(port: int, row: Row, cut: Cut = whole) -> Seen:
    """Send the row's steps and read the answers; then check whether another request is answered."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answers = Answers(client, head=row.head)
        early = False
        interims = finals = 0  # answers waited for so far; more may have been read
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
    """Read the answer to the probe, or the end of the connection."""
    must_keep = all(outcome.end is End.KEPT for outcome in row.allowed)
    if not must_keep and not answers.read(seconds=LET_GO_S):
        try:
            client.shutdown(socket.SHUT_WR)  # it may still be reading and discarding
        except OSError:
            return
    answers.read_until(count + 1)
    if answers.final[count:] and answers.final[-1].values(b"x-request-id") != [b"probe"]:
        answers.read_until(count + 2)  # one answer too many; the probe's may follow


def _send(client: socket.socket, pieces: Iterable[bytes]) -> None:
    try:
        for piece in pieces:
            client.sendall(piece)
            time.sleep(0)  # lets the router, a thread of this process, read each piece
    except ConnectionError:
        pass  # the connection was closed, which the row may allow


def serves(port: int) -> bool:
    """Whether a valid request on a new connection is answered by the worker."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(post(b"x-request-id: after", b"connection: close"))
        answers = Answers(client, head=False)
        while not answers.closed:
            if not answers.read():
                return False
    return [answer.status for answer in answers.final] == [200]
