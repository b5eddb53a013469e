"""What became of the soak's requests, as their clients saw it. Pure."""

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from benchmarks.soak_answers import answer
from benchmarks.soak_line import Reply
from benchmarks.soak_requests import Ask

_WORKER = re.compile(r"Worker (\S+) ")
#: Our own comments in a stream that is slow to begin.
_COMMENT = b": waiting\n\n"
#: Codes of refusals for want of room, which the router may give.
_NO_ROOM = frozenset(("queue_full", "overloaded"))


class End(StrEnum):
    """How a request ended."""

    ANSWERED = "answered, every byte its own"
    REFUSED = "refused, as it should be"
    LEFT = "left by the client"
    DROPPED = "dropped: the client took nothing"
    FULL = "refused for want of room"
    FAILED = "failed: 5xx"
    TOLD = "failed in mid-stream, and told so"
    CUT = "failed: cut off"
    WRONG = "WRONG answer"
    HUNG = "WITHOUT any end"


#: Ends that a worker's faults explain, or must explain; and ends that nothing does.
FAILED = frozenset((End.FULL, End.FAILED, End.TOLD, End.CUT))
NEVER = frozenset((End.WRONG, End.HUNG))


class Failure(NamedTuple):
    """A sound request that was not answered, although its client stayed."""

    number: int
    sent: float
    ended: float
    end: End
    status: int
    code: str
    worker: str
    """The one that the answer names; or empty."""
    message: str


class Odd(NamedTuple):
    """Something that must not be."""

    kind: str
    end: End
    says: str


@dataclass(slots=True)
class Tally:
    """All of it."""

    ends: Counter[tuple[str, End]] = field(default_factory=Counter)
    """By kind of client."""
    failures: list[Failure] = field(default_factory=list)
    odd: list[Odd] = field(default_factory=list)
    held_back: int = 0
    """Requests that were not sent, since so many were under way."""

    def count(self, kind: str, end: End) -> None:
        """Something has ended as it may."""
        self.ends[kind, end] += 1

    def strange(self, kind: str, end: End, says: str) -> None:
        """Something has ended as it must not."""
        self.ends[kind, end] += 1
        if len(self.odd) < 1000:
            self.odd.append(Odd(kind, end, says[:300]))

    def judge(self, kind: str, ask: Ask, sent: float, reply: Reply) -> bool:
        """Count what became of a sound request; return whether it was answered."""
        end, code, message = verdict(ask, reply)
        self.ends[kind, end] += 1
        if end is End.WRONG:
            self.odd.append(Odd(kind, end, f"soak-{ask.number}: {message}"))
        elif end not in {End.ANSWERED, End.FULL}:
            worker = reply.headers.get(b"x-warmroute-worker", b"").decode()
            named = _WORKER.match(message)
            worker = named[1] if named else worker
            self.failures.append(
                Failure(
                    ask.number, sent, reply.ended, end, reply.status, code, worker, message[:200]
                )
            )
        return end is End.ANSWERED


def verdict(ask: Ask, reply: Reply) -> tuple[End, str, str]:
    """Return how a sound request ended, and the code and the words of the error, if any."""
    if not reply.status:
        return End.CUT, "", "the connection was closed without an answer"
    if reply.status >= 500 or reply.status == 429:
        code, message = _error(reply.body)
        return (End.FULL if code in _NO_ROOM else End.FAILED), code, message
    if not reply.complete:
        return End.CUT, "", "the answer has no end"
    body = reply.body.replace(_COMMENT, b"") if ask.wish.stream else reply.body
    if reply.status == 200 and body == answer(ask.number, ask.body, ask.wish):
        return End.ANSWERED, "", ""
    code, message = _error(body.rstrip(b"\n").rpartition(b"data: ")[2])
    if reply.status == 200 and ask.wish.stream and code:
        return (End.FULL if code in _NO_ROOM else End.TOLD), code, message
    return End.WRONG, "", f"{reply.status} {reply.body[:100]!r}...{reply.body[-100:]!r}"


def _error(body: bytes) -> tuple[str, str]:
    """Return the code and the words of an error in OpenAI's shape; else nothing and the body."""
    try:
        error = json.loads(body)["error"]
        return str(error["code"] or "none"), str(error["message"])
    except (ValueError, KeyError, TypeError):
        return "", body[:200].decode(errors="replace")
