"""A worker whose probes succeed but whose requests fail is ejected, and comes back."""

import json
import re

import pytest

from tests.chaos.conftest import PATH, SOON, Fleet, MakeFleet, assert_answered, request
from tests.chaos.proxy import Fault
from tests.support import post, until

FOR_LONG = {"interval": "1h", "ejection": {"failures": 3, "first": "1h", "longest": "1h"}}
BRIEFLY = {"interval": "1h", "ejection": {"failures": 3, "first": "100ms", "longest": "200ms"}}


def statuses(made: Fleet, count: int) -> list[int]:
    """Send `count` requests one after the other; return their statuses."""
    return [made.ask(made.marker(), stream=False).status_code for _ in range(count)]


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (Fault(hang_up=True), 502),
        (Fault("close", garbage=b"nonsense\r\n\r\n"), 502),
        (Fault("stall"), 504),
    ],
    ids=["hang-up", "garbage", "stall"],
)
def test_so_many_failures_and_no_more(fleet: MakeFleet, fault: Fault, status: int) -> None:
    """After three failures in a row a worker gets no more requests, although probes succeed."""
    made = fleet(health=FOR_LONG, timeouts=SOON) if status == 504 else fleet(health=FOR_LONG)
    made.chaos[0].fault = fault
    assert sorted(statuses(made, 20)) == [200] * 17 + [status] * 3
    assert made.router.worker(0).ready
    assert made.router.worker(0).breaker.closed is False


def test_operators_see_who_is_left_out(fleet: MakeFleet) -> None:
    """`/workers` shows the ejection, its reason and its length; by probes it would be `ready`."""
    made = fleet(health=FOR_LONG)
    made.chaos[0].fault = Fault(hang_up=True)
    statuses(made, 20)
    out, other = made.router.http.get("/workers").json()
    assert (out["state"], other["state"]) == ("ejected", "ready")
    assert re.fullmatch(r"3 failures in a row, the last: \w+; back in 3\d\d\d s", out["reason"])


@pytest.mark.parametrize("says", ["full", "rejects"])
def test_a_worker_that_says_no_is_not_left_out(fleet: MakeFleet, says: str) -> None:
    """503 is backpressure and 400 the request's own fault: neither ejects a worker."""
    made = fleet(health=FOR_LONG)
    setattr(made.workers[0], says, True)
    statuses(made, 20)
    setattr(made.workers[0], says, False)
    assert made.router.worker(0).breaker.closed
    made.works()


def test_it_comes_back_when_it_works(fleet: MakeFleet) -> None:
    """An ejected worker gets one trial at a time while it fails, and its full share afterwards."""
    made = fleet(health=BRIEFLY)
    breaker = made.router.worker(0).breaker
    made.chaos[0].fault = Fault(hang_up=True)
    until(lambda: statuses(made, 4) and sum(breaker.ejections.values()) >= 3)
    assert sum(made.charged().values()) == 2 + sum(breaker.ejections.values())
    made.chaos[0].fault = None
    made.works()
    assert breaker.closed


def test_half_of_them_at_most(fleet: MakeFleet) -> None:
    """When most workers fail, only half are ejected, and the others still get requests."""
    made = fleet(4, health=FOR_LONG)
    for chaos in made.chaos[1:]:
        chaos.fault = Fault(hang_up=True)
    assert set(statuses(made, 40)) == {200, 502}
    breakers = [made.router.worker(place).breaker for place in range(4)]
    assert [breaker.closed for breaker in breakers].count(False) == 2


def test_none_if_all_fail_alike(fleet: MakeFleet) -> None:
    """When all workers fail, none is ejected: there is none that is better."""
    made = fleet(4, health=FOR_LONG)
    for chaos in made.chaos:
        chaos.fault = Fault(hang_up=True)
    assert statuses(made, 40) == [502] * 40
    assert all(made.router.worker(place).breaker.closed for place in range(4))
    for chaos in made.chaos:
        chaos.fault = None
    assert statuses(made, 10) == [200] * 10


def test_the_only_worker_is_never_left_out(fleet: MakeFleet) -> None:
    """A single worker gets every request, and answers as soon as it can."""
    made = fleet(1, health=FOR_LONG)
    made.chaos[0].fault = Fault(hang_up=True)
    assert statuses(made, 10) == [502] * 10
    made.chaos[0].fault = None
    made.works()


def test_the_only_one_with_the_model_is_asked(fleet: MakeFleet) -> None:
    """An ejected worker is still asked for a model that no other worker has."""
    made = fleet(["m adapter", "m"], health=FOR_LONG)
    made.chaos[0].fault = Fault(hang_up=True)
    statuses(made, 8)
    assert not made.router.worker(0).breaker.closed
    made.chaos[0].fault = None
    asked = {**request("special", stream=False), "model": "adapter"}
    reply = made.router.http.post(PATH, json=asked)
    assert_answered(reply, "special", stream=False)
    assert made.seen_by("special") == [0]


def test_one_is_left_out_and_the_other_dies(fleet: MakeFleet) -> None:
    """An ejected worker is asked when the only other one is down."""
    made = fleet(health=FOR_LONG)
    made.chaos[0].fault = Fault(hang_up=True)
    statuses(made, 8)
    made.chaos[0].fault = None
    made.chaos[1].die()
    until(lambda: statuses(made, 1) and not made.router.worker(1).ready)
    marker = made.marker()
    assert_answered(made.ask(marker, stream=False), marker, stream=False)
    assert made.seen_by(marker) == [0]
    assert made.router.http.get("/health/ready").status_code == 200


def test_clients_that_leave_charge_nobody(fleet: MakeFleet) -> None:
    """Client disconnects are never counted as failures of a worker."""
    made = fleet(health=FOR_LONG)
    body = json.dumps(request("leaving", stream=True)).encode()
    for chaos in made.chaos:
        chaos.fault = Fault("stall")
    for count in range(1, 11):
        with post(made.router.port, PATH, body):
            until(lambda count=count: len(made.seen_by("leaving")) == count)  # type: ignore[misc]
        until(made.router.idle)
    for chaos in made.chaos:
        chaos.fault = None
    assert all(worker.breaker.closed for worker in made.router.door.fleet.workers)
    assert made.charged() == {}
    made.works()
