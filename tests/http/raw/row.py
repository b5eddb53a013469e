"""A row of the table: bytes that a client sends, and the outcomes that are allowed.

There may be several outcomes, as the RFCs often allow two: to refuse, or to interpret in one
certain way. Where they let a recipient repair or refuse, most rows require refusal.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from tests.http.raw.request import BODY


class End(Enum):
    """Whether the connection is closed or kept after the row."""

    CLOSED = auto()
    KEPT = auto()
    EITHER = auto()


class Wait(Enum):
    """A step at which the client waits instead of sending."""

    INTERIM = auto()
    """Read until an interim (1xx) answer has come."""
    FINAL = auto()
    """Read until a final answer has come."""
    SILENCE = auto()
    """Check that nothing comes for `SILENCE_S` seconds."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One way in which a row may end."""

    answers: tuple[frozenset[int], ...]
    """The statuses that each final answer may have, in order."""
    bodies: tuple[bytes, ...]
    """The bodies that reach the worker, in order."""
    end: End

    def then(self, later: "Outcome") -> "Outcome":
        """This outcome followed by another one on the same connection."""
        return Outcome(self.answers + later.answers, self.bodies + later.bodies, later.end)


Sent = bytes | Wait
Steps = list[Sent]


@dataclass(frozen=True, slots=True)
class Row:
    """One conversation and its possible outcomes."""

    name: str
    rfc: str
    """The source of the expectation."""
    sent: tuple[Sent, ...]
    allowed: tuple[Outcome, ...]
    interims: Sequence[int]
    """How many `100 Continue` answers are allowed."""
    head: bool
    """Whether the request is a HEAD: the answer has no content, whatever its Content-Length."""
    ids: Sequence[bytes]
    """The `x-request-id` of each answer, if their order matters."""
    carried: Sequence[tuple[bytes, bytes]]
    """Header fields that the worker must get exactly once, as they were sent."""
    never: Sequence[bytes]
    """Words that must appear neither in a head that reaches the worker nor in an answer."""

    @property
    def size(self) -> int:
        """The number of bytes that the client sends."""
        return sum(len(step) for step in self.sent if isinstance(step, bytes))


def row(
    name: str,
    rfc: str,
    sent: bytes | Sequence[Sent],
    *allowed: Outcome,
    interims: Sequence[int] = (0,),
    head: bool = False,
    ids: Sequence[bytes] = (),
    carried: Sequence[tuple[bytes, bytes]] = (),
    never: Sequence[bytes] = (),
) -> Row:
    """Make a row."""
    steps = (sent,) if isinstance(sent, bytes) else tuple(sent)
    return Row(name, rfc, steps, allowed, interims, head, ids, carried, never)


Value = bytes | tuple[bytes, ...]


def each(
    name: str,
    rfc: str,
    make: Callable[..., bytes],
    values: Mapping[str, Value] | Iterable[Value],
    *allowed: Outcome,
    never: Sequence[bytes] = (),
) -> list[Row]:
    """Make a row of each value, which `make` turns into bytes; without a name it is its own."""
    if not isinstance(values, Mapping):
        values = {repr(value)[:60]: value for value in values}
    return [
        row(
            f"{name}-{label}",
            rfc,
            make(*((value,) if isinstance(value, bytes) else value)),
            *allowed,
            never=never,
        )
        for label, value in values.items()
    ]


def answered(*statuses: int, end: End = End.EITHER) -> Outcome:
    """One answer by the router itself; nothing reaches the worker."""
    return Outcome((frozenset(statuses),), (), end)


def refused(*statuses: int) -> Outcome:
    """One error, and the connection is closed, as it is unknown where the next request begins."""
    return answered(*statuses, end=End.CLOSED)


def served(*bodies: bytes, end: End = End.EITHER) -> Outcome:
    """Every body reaches the worker, and every request is answered with 200."""
    return Outcome((frozenset({200}),) * len(bodies), bodies, end)


#: The usual body reaches the worker; the connection may be kept, is kept, or is closed.
SERVED, KEPT, CLOSED = (served(BODY, end=end) for end in (End.EITHER, End.KEPT, End.CLOSED))
#: What is not understood, and after which nothing is.
BAD = refused(400)
#: The connection is closed without an answer.
DROPPED = Outcome((), (), End.CLOSED)
