"""What a request keeps of having been taken back from its worker."""

from typing import cast

import pytest

from router.api.endpoints import ENDPOINTS
from router.dispatch.request import InferenceRequest
from router.fleet.worker import Worker
from router.http.exchange import ClientConnection, Exchange
from router.http.validation import RequestHead
from tests.router.fleets import fleet, prompt


@pytest.fixture
def worker() -> Worker:
    """Any worker."""
    return fleet(workers=1).pools[0].workers[0]


def request() -> InferenceRequest:
    """A request that has not been sent yet."""
    return InferenceRequest(
        next(iter(ENDPOINTS.values())),
        Exchange(
            cast("ClientConnection", object()), RequestHead("POST", "1.1", [], "/"), keep=True
        ),
        fleet().pools[0],
        prompt("text"),
        None,
        identity=b"1",
        tenant="",
        workers=(),
        started=0.0,
        session=None,
        salt=b"",
    )


def test_what_was_held_first_counts_from_where_it_gave_way_first(worker: Worker) -> None:
    """Where it was moved from a worker that is stuck, nothing that was computed there counts."""
    asked = request()
    asked.moved(worker, suspected=False)
    assert (asked.last, asked.held_first, asked.preemptions) == (None, 0, 1)
    assert asked.prompt.resumed
    asked.gave_way(worker, 100)
    asked.gave_way(worker, 200)
    assert (asked.last, asked.held_first, asked.preemptions) == (worker, 100, 3)


def test_who_was_suspected_stays_suspected(worker: Worker) -> None:
    """Also if it is parsed again, because its pool has changed."""
    asked, again = request(), request()
    asked.moved(worker, suspected=True)
    asked.moved(worker, suspected=False)
    assert asked.suspected
    asked.renew(again)
    assert asked.suspected
    assert asked.prompt.resumed


def test_it_does_not_go_back_at_once(worker: Worker) -> None:
    """The first decision after a move leaves out the stuck worker, also if it is parsed again."""
    asked = request()
    other = fleet(workers=1).pools[0].workers[0]
    asked.moved(worker, suspected=False)
    asked.renew(request())
    assert asked.elsewhere([worker, other]) == [other]
    assert asked.elsewhere([worker, other]) == [worker, other]
