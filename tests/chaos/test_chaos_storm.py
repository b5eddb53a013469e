"""Many requests and many faults at once: every request has one clear end."""

import json
from concurrent.futures import ThreadPoolExecutor
from random import Random

import httpx
import pytest

from tests.chaos.conftest import LIVELY, SOON, Fleet, MakeFleet
from tests.chaos.echo import answer, body, head
from tests.chaos.proxy import Fault
from tests.support import error_of, until


def outcome(made: Fleet, marker: str, *, stream: bool) -> str:
    """Send a request and classify its end; fail if the end is not clear to the client."""
    try:
        reply = made.ask(marker, stream=stream)
    except httpx.RemoteProtocolError:
        assert not stream  # a stream must end with an error event instead
        return "cut"
    whole = body(marker, stream=stream)
    if reply.status_code != 200:
        assert reply.status_code in {502, 503, 504}
        assert error_of(reply)["type"] == "server_error"
        return "refused"
    if reply.content == whole:
        return "answered"
    assert stream
    *events, last, rest = reply.content.split(b"\n\n")
    assert rest == b""
    assert json.loads(last.strip().removeprefix(b"data: "))["error"]["code"] == "worker_failed"
    assert whole.startswith(b"\n\n".join(events))
    return "broken"


def fault_of(random: Random) -> Fault | None:
    """Pick a random fault, or none half of the time."""
    marker = "marker-000"
    stream = random.random() < 0.5
    start, end = len(head(marker, stream=stream)), len(answer(marker, stream=stream))
    anywhere = random.choice([0, random.randrange(start), start, random.randrange(start, end)])
    return random.choice(
        [
            *[None] * 7,
            Fault("close", anywhere),
            Fault("reset", anywhere),
            Fault("stall", anywhere),
            Fault("close", garbage=b"\x00nonsense\r\n\r\n"),
            Fault(pieces=random.randrange(1, 50)),
            Fault(hang_up=True),
            Fault(hang_up=True, once=True),
        ]
    )


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))]
)
def test_every_request_has_one_clear_end(fleet: MakeFleet, seed: int) -> None:
    """Each request is answered or fails clearly and reaches at most one worker; all recovers."""
    made, random = fleet(3, health=LIVELY, timeouts=SOON), Random(seed)
    ends: dict[str, str] = {}
    dead: list[int] = []
    with ThreadPoolExecutor(8) as clients:
        for _ in range(8):
            for chaos in made.chaos:
                chaos.fault = fault_of(random)
            if dead:
                made.chaos[dead.pop()].listen()
            elif random.random() < 0.5:
                dead.append(random.randrange(3))
                made.chaos[dead[0]].die()
            markers = [made.marker() for _ in range(12)]
            streams = [random.random() < 0.5 for _ in markers]
            ended = clients.map(lambda m, s: outcome(made, m, stream=s), markers, streams)
            ends.update(zip(markers, ended, strict=True))
    for marker, end in ends.items():
        workers = set(made.seen_by(marker))
        assert len(workers) <= 1
        assert workers or end == "refused"
    assert "answered" in ends.values()
    for chaos in made.chaos:
        chaos.fault = None
    if dead:
        made.chaos[dead[0]].listen()
    until(made.router.idle)
    made.works()


@pytest.mark.parametrize("seed", range(2))
def test_what_can_be_saved_is_saved(fleet: MakeFleet, seed: int) -> None:
    """While one worker is well, and others are full or refuse connections, all are answered."""
    made, random = fleet(3, health=LIVELY, limits={"retries": 1}), Random(seed)
    for _ in range(6):
        well = random.randrange(3)
        for place, worker in enumerate(made.workers):
            worker.full = place != well and random.random() < 0.5
        others = [place for place in range(3) if place != well and random.random() < 0.5]
        all_answered(made, random, dead=others)
    for worker in made.workers:
        worker.full = False
    made.works()


def test_a_crowd_before_workers_that_vanished(fleet: MakeFleet) -> None:
    """Requests whose connection attempts hang are all answered by the one worker that is left."""
    made = fleet(3, timeouts={"connect": "1500ms"}, health={**LIVELY, "timeout": "1s"})
    made.chaos[0].vanish()
    made.chaos[1].vanish()
    markers = [made.marker() for _ in range(24)]
    with ThreadPoolExecutor(len(markers)) as clients:
        ended = clients.map(lambda marker: outcome(made, marker, stream=True), markers)
        assert list(ended) == ["answered"] * len(markers)
    assert all(made.seen_by(marker) == [2] for marker in markers)


def all_answered(made: Fleet, random: Random, dead: list[int]) -> None:
    """Send many requests while `dead` workers refuse; each must be answered by one worker, once."""
    for place in dead:
        made.chaos[place].die()
    kept = [made.router.worker(place).upstream for place in dead]
    until(lambda: not any(connection.usable for each in kept for connection in each.kept))
    markers = [made.marker() for _ in range(16)]
    streams = [random.random() < 0.5 for _ in markers]
    with ThreadPoolExecutor(8) as clients:
        ended = clients.map(lambda m, s: outcome(made, m, stream=s), markers, streams)
        assert list(ended) == ["answered"] * len(markers)
    assert all(len(made.seen_by(marker)) == 1 for marker in markers)
    for place in dead:
        made.chaos[place].listen()
    until(lambda: all(worker.ready for worker in made.router.door.fleet.workers))
