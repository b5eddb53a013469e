"""How the soak's requests ended, as seen by their clients. Pure."""

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from benchmarks.harness.connection import Reply
from benchmarks.soak.answers import answer
from benchmarks.soak.requests import Ask

_WORKER = re.compile(r"Worker (\S+) ")
#: The router's own comment in a stream that is slow to begin.
_COMMENT = b": waiting\n\n"
#: Error codes of refusals for lack of capacity, which the router may give.
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


#: Ends that a worker's faults may explain, and ends that nothing excuses.
FAILED = frozenset((End.FULL, End.FAILED, End.TOLD, End.CUT))
NEVER = frozenset((End.WRONG, End.HUNG))


class Failure(NamedTuple):
    """A valid request that was not answered, although its client stayed."""

    number: int
    sent: float
    ended: float
    end: End
    status: int
    code: str
    worker: str
    """The worker named in the answer, or empty."""
    message: str


class Odd(NamedTuple):
    """Something that must not happen."""

    kind: str
    end: End
    says: str


@dataclass(slots=True)
class Tally:
    """Counts and details of how all requests ended."""

    ends: Counter[tuple[str, End]] = field(default_factory=Counter)
    """Counts by kind of client and end."""
    failures: list[Failure] = field(default_factory=list)
    odd: list[Odd] = field(default_factory=list)
    held_back: int = 0
    """Clients that were not started because too many were running."""

    def count(self, kind: str, end: End) -> None:
        """Count an end that is as it should be."""
        self.ends[kind, end] += 1

    def strange(self, kind: str, end: End, says: str) -> None:
        """Count and record an end that must not happen."""
        self.ends[kind, end] += 1
        if len(self.odd) < 1000:
            self.odd.append(Odd(kind, end, says[:300]))

    def judge(self, kind: str, ask: Ask, sent: float, reply: Reply) -> bool:
        """Count how a valid request ended; return whether it was answered."""
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
    """Return how a valid request ended, with the code and message of the error, if any."""
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
    """Return code and message of an error in OpenAI's format; else an empty code and the body."""
    try:
        error = json.loads(body)["error"]
        return str(error["code"] or "none"), str(error["message"])
    except (ValueError, KeyError, TypeError):
        return "", body[:200].decode(errors="replace")
