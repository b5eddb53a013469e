"""The paths of a single response lead to the worker that has it."""

import itertools

import pytest

from router.fleet.worker import ProbeState
from tests.cancel.leaving import counted
from tests.reload.changing import change
from tests.responses.asking import PATH, create, follow, get, made, owner
from tests.responses.conftest import MakeEngines
from tests.responses.engine import Engine
from tests.support import MakeRouter, Router, error_of, read_all, send, until


@pytest.fixture
def three(engines: MakeEngines, route: MakeRouter) -> tuple[list[Engine], Router]:
    """Three workers, and a router that asks them in turns."""
    workers = engines(3)
    return workers, route(*(one.url for one in workers), strategy="roundrobin")


def test_each_operation_reaches_the_worker_as_it_was_sent(
    three: tuple[list[Engine], Router],
) -> None:
    """Method, path, query, body and header fields; and the answer comes back."""
    workers, router = three
    for _ in range(4):
        name = made(router, background=True)
        home = owner(workers, name)
        for method, rest, body in (
            ("GET", "", b""),
            ("GET", "?include[]=reasoning&stream=false", b""),
            ("GET", "/input_items?limit=2", b""),
            ("POST", "/cancel", b""),
            ("POST", "/cancel", b"{}"),
            ("DELETE", "", b""),
        ):
            told = {"x-request-id": "mine", "x-other": "passes", "content-type": "application/json"}
            url = f"{PATH}/{name}{rest}"
            reply = router.http.request(method, url, content=body, headers=told)
            assert reply.status_code == 200
            assert reply.headers["x-warmroute-worker"] in home.url
            assert reply.headers["x-request-id"] == "mine"
            asked = home.seen[-1]
            assert (asked.method, asked.target, asked.body) == (method, url, body)
            assert (asked.headers["x-other"], asked.headers["x-request-id"]) == ("passes", "mine")
        assert home.kept.get(name) is None
        gone = get(router, name)
        assert gone.status_code == 404
        assert "x-warmroute-worker" in gone.headers


def test_a_stream_that_breaks_off_ends_with_an_error(
    three: tuple[list[Engine], Router],
) -> None:
    """In the events of `/v1/responses`; and it is counted."""
    workers, router = three
    name = made(router, background=True)
    owner(workers, name).breaks = True
    text = router.http.get(f"{PATH}/{name}?stream=true").text
    assert text.startswith("event: response.created")
    assert "worker_failed" in text.split("\n\n")[-2]
    assert counted(router, "worker_errors") == {"closed": 1}


def test_a_client_that_leaves_ends_its_fetch(three: tuple[list[Engine], Router]) -> None:
    """The worker's connection is closed, and the request counted as left."""
    workers, router = three
    name = made(router, background=True)
    home = owner(workers, name)
    home.stalls = True
    line = f"GET {PATH}/{name}?stream=true HTTP/1.1\r\nhost: x\r\n\r\n"
    with send(router.port, line.encode()) as client:
        assert client.recv(12) == b"HTTP/1.1 200"
        assert home.open
    until(lambda: not home.open)
    until(lambda: counted(router, "requests")["499"] == 1)


def test_an_unknown_id_is_a_404(three: tuple[list[Engine], Router]) -> None:
    """In OpenAI's shape, with what may have happened; no worker is asked."""
    workers, router = three
    for method, rest in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
        reply = router.http.request(method, f"{PATH}/resp_none{rest}")
        assert reply.status_code == 404
        error = error_of(reply)
        assert error["code"] == "response_not_found"
        assert error["type"] == "invalid_request_error"
        assert "expired" in error["message"]
    assert sum(len(one.seen) for one in workers) == 0


def test_the_only_worker_is_asked_whatever_is_known(
    engines: MakeEngines, route: MakeRouter
) -> None:
    """As after a restart of the router; its answer is the client's, errors included."""
    [worker] = engines(1)
    before = route(worker.url)
    name = made(before)
    after = route(worker.url)
    assert get(after, name).status_code == 200
    assert get(after, "resp_none").json()["error"]["message"].endswith("not found.")
    assert follow(after, name).status_code == 200


STRANGE = [
    *("..", ".", "%2e%2e", "%2E%2E/health", "../chat/completions", "resp_1%2fcancel"),
    *("resp_1%00", "resp_1%0d%0aX:1", "resp_1;x=1", "resp_1/", "resp_1//cancel"),
    *("resp_1/cancel/", "resp_1/other", "resp_1/cancel/../../../health", "r" * 129, ""),
    *("réponse", "input_tokens", "compact"),
]


def test_no_path_leads_elsewhere_at_a_worker(engines: MakeEngines, route: MakeRouter) -> None:
    """Whatever is no id is a 404, even with one worker, which is asked of all ids."""
    [worker] = engines(1)
    router = route(worker.url)
    for method, path in itertools.product((b"GET", b"POST", b"DELETE"), STRANGE):
        target = f"{PATH}/{path}".encode()
        request = b"%b %b HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n" % (method, target)
        with send(router.port, request) as client:
            status = int(read_all(client).split(b" ")[1])
        assert status in {400, 404}, (method, path)
    assert worker.seen == []


def test_other_methods_are_refused(three: tuple[list[Engine], Router]) -> None:
    """405, with those that are allowed."""
    workers, router = three
    name = made(router)
    for method, rest, allowed in (
        ("POST", "", "GET, DELETE"),
        ("GET", "/cancel", "POST"),
        ("DELETE", "/cancel", "POST"),
        ("POST", "/input_items", "GET"),
    ):
        reply = router.http.request(method, f"{PATH}/{name}{rest}")
        assert (reply.status_code, reply.headers["allow"]) == (405, allowed)
    assert sum(len(one.seen) for one in workers) == 1


def test_a_worker_that_drains_is_asked_for_what_it_has(
    engines: MakeEngines, route: MakeRouter
) -> None:
    """It gets nothing new; also if it is the only one that serves the model."""
    workers = engines(2)
    told = [{"url": one.url} for one in workers]
    router = route(*told, strategy="roundrobin")
    name = made(router)
    home = owner(workers, name)
    draining = [{**one, "drain": one["url"] == home.url} for one in told]
    change(router, *draining, strategy="roundrobin")
    for _ in range(2):
        assert get(router, name).status_code == 200
        assert follow(router, name).status_code == 200
        assert create(router).status_code == 200
    assert len(home.seen) == 5
    change(router, *[{**one, "drain": True} for one in told], strategy="roundrobin")
    assert follow(router, name).status_code == 200
    assert create(router).status_code == 503


def test_a_worker_that_sleeps_shows_what_it_has(engines: MakeEngines, route: MakeRouter) -> None:
    """That is no work for its engine; a follow-up goes nowhere else, and is to come again."""
    workers = engines(2)
    for one in workers:
        one.awake = True
    router = route(*(one.url for one in workers), health={"interval": "10ms"})
    name = made(router)
    home = owner(workers, name)
    home.awake = False
    until(lambda: router.worker(workers.index(home)).state is ProbeState.ASLEEP)
    assert get(router, name).status_code == 200
    refused = follow(router, name)
    assert (refused.status_code, error_of(refused)["code"]) == (503, "no_worker")
    assert "asleep" in error_of(refused)["message"]
    home.awake = True
    until(lambda: router.worker(workers.index(home)).ready)
    assert follow(router, name).status_code == 200


def test_what_a_removed_worker_had_is_gone(engines: MakeEngines, route: MakeRouter) -> None:
    """A 404 that says so, for fetches and follow-ups; what others have stays known."""
    workers = engines(3)
    urls = [one.url for one in workers]
    router = route(*urls, strategy="roundrobin")
    names = [made(router) for _ in range(3)]
    gone = owner(workers, names[0])
    change(router, *(url for url in urls if url != gone.url), strategy="roundrobin")
    assert [get(router, name).status_code for name in names] == [404, 200, 200]
    assert [follow(router, name).status_code for name in names] == [404, 200, 200]
    error = error_of(follow(router, names[0]))
    assert error["param"] == "previous_response_id"
    assert error["code"] == "previous_response_not_found"
    assert len(gone.seen) == 1


@pytest.mark.parametrize("again", [False, True])
def test_a_worker_that_was_away(engines: MakeEngines, route: MakeRouter, again: bool) -> None:
    """If it tells of another start, it has nothing and is not even asked; else it has it all."""
    workers = engines(2)
    for one in workers:
        one.born = 1000.0
    urls = [one.url for one in workers]
    router = route(*urls, strategy="roundrobin", health={"interval": "20ms"})
    name = made(router)
    home = owner(workers, name)
    kept = dict(home.kept)
    [there] = [one for one in router.door.fleet.workers if one.url == home.url]
    home.stop()
    until(lambda: not there.ready)
    home.born = 1000.0 if again else 2000.0
    home.start()
    home.kept.update(kept)
    until(lambda: there.ready)
    asked = len(home.seen)
    replies = [get(router, name), follow(router, name)]
    assert [reply.status_code for reply in replies] == ([200] * 2 if again else [404] * 2)
    if not again:
        assert all("restarted" in error_of(reply)["message"] for reply in replies)
        assert len(home.seen) == asked


def test_an_id_that_its_key_chose_again_is_where_it_was_last(
    engines: MakeEngines, route: MakeRouter
) -> None:
    """The later response is the one that is meant."""
    workers = engines(2)
    router = route(*(one.url for one in workers), strategy="roundrobin")
    for _ in range(2):
        made(router, request_id="resp_mine")
        newest = next(one for one in workers if one.seen and one.seen[-1].method == "POST")
        get(router, "resp_mine")
        assert newest.seen[-1].method == "GET"


def test_a_reload_forgets_nothing(engines: MakeEngines, route: MakeRouter) -> None:
    """Nor does another strategy, or another pool with the same workers."""
    workers = engines(3)
    urls = [one.url for one in workers]
    router = route(*urls, strategy="roundrobin")
    name = made(router)
    change(router, *urls, strategy="leastload")
    assert get(router, name).status_code == 200
    change(router, pools=[{"name": "other", "workers": urls}])
    assert follow(router, name).status_code == 200


def test_below_a_sagemaker_endpoint_they_are_the_same(
    three: tuple[list[Engine], Router],
) -> None:
    """Made there or below `/v1`, fetched here or there."""
    workers, router = three
    other = "/endpoints/x/openai"
    body = {"model": "m", "input": "x"}
    name = router.http.post(f"{other}{PATH}", json=body).json()["id"]
    assert get(router, name).status_code == 200
    for path in (name, made(router)):
        assert router.http.get(f"{other}{PATH}/{path}").status_code == 200
        assert owner(workers, path).seen[-1].target == f"{PATH}/{path}"
    assert router.http.post(f"{other}{PATH}/{name}/cancel").status_code == 200
    assert error_of(router.http.get(f"{other}{PATH}/resp_none"))["code"] == "response_not_found"
