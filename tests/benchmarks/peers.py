"""Workers and prompts for tests of the peers' routing rules."""

from collections.abc import Sequence

from benchmarks.routing.columns import SMALL
from benchmarks.routing.drive import ENDS, Drive, Fleet, Seat
from benchmarks.routing.peers import Peer
from benchmarks.routing.strides import Job
from strategies.api import NoOptions, Prompt
from strategies.policies.least_load import LeastLoad

KEYS = tuple(range(100, 120))
TOKENS = 20 * 512 + 100


def seats(count: int = 3) -> Sequence[Seat]:
    """Return idle workers."""
    return Drive(
        Fleet(SMALL, count, cache_tokens=1_000_000), lambda _: LeastLoad(NoOptions())
    ).seats


def prompt(keys: tuple[int, ...] = KEYS, tokens: int = TOKENS) -> Prompt:
    """Return a prompt."""
    return Prompt("model", tokens, keys, ENDS)


def warm(seat: Seat, keys: tuple[int, ...] = KEYS) -> None:
    """Let a worker hold a prefix."""
    seat.engine.add(Job(-1, keys, len(keys) * 512 + 1, 1), 0.0)
    while seat.engine.running or seat.engine.waiting:
        seat.engine.advance(seat.engine.due)


def queue(seat: Seat, requests: int, tokens: int = 5_000, keys: tuple[int, ...] = ()) -> None:
    """Let so many requests wait in a worker's engine, behind one that it computes."""
    for number in range(requests + 1):
        seat.engine.add(Job(number, keys if number else (), tokens, 1), 0.0)


def busy(seat: Seat, requests: int, prefill_s: float = 0.1) -> None:
    """Book requests on a worker."""
    for _ in range(requests):
        seat.load.book(0.0, prefill_s)


def sent(peer: Peer, seat: Seat, asked: Prompt) -> None:
    """Let a peer believe that it sent a prompt to a worker."""
    peer.rank(asked, peer.seats, 0.0)
    peer.placed(asked, seat, 0.0)
