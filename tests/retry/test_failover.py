"""Who is asked next, and whose answer is given."""

import pytest

from tests.health.failing import CHAT, FAULTS, PATH, QUIET, says
from tests.support import Action, MakeRouter, MakeStub, until


def full(name: bytes) -> list[Action]:
    """A worker that is full, and says when to come back."""
    fields = b"content-length: %d\r\nretry-after: 17" % len(name)
    return [b"HTTP/1.1 503 Service Unavailable\r\n%b\r\n\r\n%b" % (fields, name)]


@pytest.mark.parametrize(("attempts", "last"), [(1, b"a"), (2, b"b"), (3, b"c"), (10, b"c")])
def test_all_are_full(stub: MakeStub, route: MakeRouter, attempts: int, last: bytes) -> None:
    """The last one that may be asked has the word, its Retry-After too."""
    workers = [stub(full(name)) for name in (b"a", b"b", b"c")]
    router = route(
        *(worker.url for worker in workers),
        strategy="roundrobin",
        limits={"attempts": attempts},
        health=QUIET,
    )
    reply = router.http.post(PATH, json=CHAT)
    assert (reply.status_code, reply.content) == (503, last)
    assert reply.headers["retry-after"] == "17"
    assert reply.headers["x-warmroute-worker"] == workers[last[0] - ord("a")].url[7:]
    assert [len(worker.requests) for worker in workers] == [1, 1, 1][:attempts] + [0] * (
        3 - min(3, attempts)
    )


def test_full_then_gone(stub: MakeStub, route: MakeRouter) -> None:
    """Those who cannot be reached do not count as asked; the one with room answers."""
    workers = [stub(full(b"a")), stub(), stub(full(b"c")), stub()]
    router = route(*(w.url for w in workers), strategy="roundrobin", health=QUIET)
    workers[1].stop()
    reply = router.http.post(PATH, json=CHAT)
    assert reply.status_code == 200
    assert reply.headers["x-warmroute-worker"] == workers[3].url[7:]


@pytest.mark.parametrize("fault", FAULTS)
def test_what_may_have_begun(stub: MakeStub, route: MakeRouter, fault: str) -> None:
    """It is not sent again, whatever the budget."""
    script, _ = FAULTS[fault]
    bad, good = stub(script), stub()
    router = route(
        bad.url,
        good.url,
        strategy="roundrobin",
        limits={"retries": 1.0, "attempts": 10},
        timeouts={"first_byte": "200ms"},
        health=QUIET,
    )
    router.http.post(PATH, json=CHAT)
    until(router.idle)
    assert (len(bad.requests), len(good.requests)) == (1, 0)


@pytest.mark.parametrize("status", [400, 401, 404, 408, 422, 429, 500, 501, 502, 504])
def test_other_answers_are_answers(stub: MakeStub, route: MakeRouter, status: int) -> None:
    """They are given as they are, and nobody else is asked."""
    odd, good = stub(says(status)), stub()
    router = route(odd.url, good.url, strategy="roundrobin", health=QUIET)
    reply = router.http.post(PATH, json=CHAT)
    assert (reply.status_code, reply.content) == (status, b"{}")
    assert (len(odd.requests), len(good.requests)) == (1, 0)
