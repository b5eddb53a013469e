"""A row of the table: bytes a client sends, and all that may come of them.

What may come is a set of outcomes, as the RFCs often allow two: to refuse, or to understand in
one certain way. Where they let a recipient repair or refuse, most rows hold us to refusing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto


class End(Enum):
    """What becomes of the connection."""

    CLOSED = auto()
    KEPT = auto()
    EITHER = auto()


class Wait(Enum):
    """A step of the client that is not sending."""

    INTERIM = auto()
    """Read until a 1xx has come."""
    FINAL = auto()
    """Read until a final answer has come."""
    SILENCE = auto()
    """For a moment, nothing may come."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One way in which a row may end."""

    answers: tuple[frozenset[int], ...]
    """The statuses that each final answer may have, in order."""
    bodies: tuple[bytes, ...]
    """The bodies that reach the worker, in order."""
    end: End

    def then(self, later: "Outcome") -> "Outcome":
        """This one, and on the same connection another."""
        return Outcome(self.answers + later.answers, self.bodies + later.bodies, later.end)


Sent = bytes | Wait


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One conversation and its possible outcomes."""

    name: str
    rfc: str
    """Where the expectation comes from."""
    sent: tuple[Sent, ...]
    allowed: tuple[Outcome, ...]
    interims: frozenset[int] = frozenset({0})
    """How many times `100 Continue` may be said."""
    head: bool = False
    """The answer is to HEAD: it has no content, whatever length it tells."""
    ids: tuple[bytes, ...] = ()
    """The `x-request-id` of each answer, where their order matters."""
    carried: tuple[tuple[bytes, bytes], ...] = ()
    """Header fields that the worker gets exactly once, as they were sent."""
    never: tuple[bytes, ...] = ()
    """Words that are neither in a request that reaches the worker nor in an answer."""

    @property
    def size(self) -> int:
        """Bytes that the client sends."""
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
    """Write a row down in one call."""
    return Row(
        name=name,
        rfc=rfc,
        sent=(sent,) if isinstance(sent, bytes) else tuple(sent),
        allowed=allowed,
        interims=frozenset(interims),
        head=head,
        ids=tuple(ids),
        carried=tuple(carried),
        never=tuple(never),
    )


def answered(*statuses: int, end: End = End.EITHER) -> Outcome:
    """One answer of the router's own; nothing reaches the worker."""
    return Outcome((frozenset(statuses),), (), end)


def refused(*statuses: int) -> Outcome:
    """One error, and the connection is closed, as nobody knows where the next request begins."""
    return answered(*statuses, end=End.CLOSED)


def served(*bodies: bytes, end: End = End.EITHER) -> Outcome:
    """Every body reaches the worker, and every request is answered with 200."""
    return Outcome((frozenset({200}),) * len(bodies), bodies, end)


#: The connection is closed without a word.
DROPPED = Outcome((), (), End.CLOSED)
