"""Requests that go on from a response are sent to the worker that has it."""

import json
import threading
from typing import Any

import pytest

from tests.responses.asking import PATH, create, follow, get, made, owner
from tests.responses.conftest import MakeEngines
from tests.support import MakeRouter, error_of, until

#: Answers in which the id stands elsewhere than where vLLM has it.
JSON, SSE = b"application/json", b"text/event-stream"
LONG = b'"instructions":"say \\"id\\": no {[,:", "tools":[{"id":"t"},{"response":{"id":"u"}}],'


def pieces(text: bytes) -> list[bytes]:
    """Cut an answer into chunks that are shorter than an id."""
    whole = text.split(b"ID")
    return [one for part in whole for one in (*map(bytes, zip(part, strict=True)), b"ID")][:-1]


@pytest.mark.parametrize(
    "answers",
    [
        pytest.param([JSON, b'{%b"output":[],"id" : "ID"}' % LONG], id="id last"),
        pytest.param([JSON, *pieces(b' {\n "id": "ID", "object": "response"}')], id="pieces"),
        pytest.param(
            [
                SSE,
                b': ping\n\ndata: {"type":"x"}\n\n',
                b'event: response.created\r\ndata: {"type":"c","response":{',
                b'%b"id":"ID"}}\r\n\r\n' % LONG,
                b'data: {"type":"response.completed","response":{"id":"other"}}\n\n',
            ],
            id="event in pieces",
        ),
        pytest.param(
            [SSE, *pieces(b'data: {"response":{"object":"r","id":"ID"}}\n\ndata: [DONE]\n\n')],
            id="bytes of a stream",
        ),
    ],
)
def test_the_id_is_found_wherever_it_stands(
    engines: MakeEngines, route: MakeRouter, answers: list[bytes]
) -> None:
    """Not only at the very beginning, and not that of anything within the response."""
    workers = engines(3)
    for one in workers:
        one.answers = answers
    router = route(*(one.url for one in workers), strategy="roundrobin")
    for _ in range(6):
        reply = create(router, stream=answers[0] == SSE)
        assert reply.status_code == 200
        [kept] = [name for one in workers for name in one.kept]
        for _ in range(3):
            assert get(router, kept).status_code == 200
        for one in workers:
            one.kept.clear()


@pytest.mark.parametrize(
    ("strategy", "fields"),
    [("roundrobin", {}), ("prefixaware", {"stream": True}), ("leastload", {"background": True})],
)
def test_a_conversation_stays_where_its_responses_are(
    engines: MakeEngines, route: MakeRouter, fields: dict[str, Any], strategy: str
) -> None:
    """Each turn names the one before, whatever the strategy would choose."""
    workers = engines(3)
    router = route(*(one.url for one in workers), strategy=strategy)
    for user in range(4):
        before: dict[str, str] = {}
        for turn in range(4):
            reply = create(router, f"user {user} turn {turn}", **fields, **before)
            assert reply.status_code == 200, reply.text
            if turn:
                assert reply.headers["x-warmroute-decision"].startswith("response")
            text = reply.text
            if "stream" in fields:
                text = json.dumps(json.loads(text.split("data: ")[1].split("\n")[0])["response"])
            before = {"previous_response_id": json.loads(text)["id"]}


def test_a_follow_up_waits_for_its_worker(engines: MakeEngines, route: MakeRouter) -> None:
    """Another worker has room, but cannot go on from the response."""
    workers = engines(2)
    router = route(*(one.url for one in workers), limits={"in_flight": 1})
    first = made(router)
    home = owner(workers, first)
    home.makes.clear()
    replies: list[int] = []

    def go_on() -> None:
        replies.append(follow(router, first, stream=True).status_code)

    threads = [threading.Thread(target=go_on) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        until(lambda: router.metric("warmroute_queue_length") == 2 or len(replies) > 1)
    finally:
        home.makes.set()
    for thread in threads:
        thread.join(20)
    assert replies == [200] * 3
    assert sum(len(one.seen) for one in workers if one is not home) == 0


def test_a_full_worker_says_so_itself(engines: MakeEngines, route: MakeRouter) -> None:
    """Its 503 reaches the client: no other worker is asked in vain."""
    workers = engines(2)
    router = route(*(one.url for one in workers), strategy="roundrobin")
    first = made(router)
    home = owner(workers, first)
    home.full = True
    assert follow(router, first).status_code == 503
    assert len(home.seen) == 2
    assert sum(len(one.seen) for one in workers) == 2
    home.full = False
    assert follow(router, first).status_code == 200


def test_while_its_worker_is_away_a_follow_up_is_to_come_again(
    engines: MakeEngines, route: MakeRouter
) -> None:
    """503 with `retry-after`, from the first refused connection on."""
    workers = engines(2)
    router = route(*(one.url for one in workers), strategy="roundrobin")
    first = made(router)
    owner(workers, first).stop()
    for reply in (follow(router, first), follow(router, first), get(router, first)):
        assert reply.status_code == 503
        assert error_of(reply)["code"] == "no_worker"
        assert int(reply.headers["retry-after"]) > 0
    assert create(router).status_code == 200


@pytest.mark.parametrize("before", ["resp_none", "x" * 5000, "../../health", {"a": []}, None])
def test_what_is_not_known_is_for_the_worker_to_judge(
    engines: MakeEngines, route: MakeRouter, before: object
) -> None:
    """The request is routed as any, unchanged, and the worker's answer is the client's."""
    workers = engines(2)
    router = route(*(one.url for one in workers))
    reply = create(router, previous_response_id=before)
    assert reply.status_code == (200 if before is None else 404)
    assert "x-warmroute-worker" in reply.headers
    [asked] = [one for worker in workers for one in worker.seen]
    assert json.loads(asked.body)["previous_response_id"] == before


def test_only_what_is_stored_is_remembered(engines: MakeEngines, route: MakeRouter) -> None:
    """Neither `store: false` nor an error takes up room."""
    workers = engines(2)
    router = route(*(one.url for one in workers))
    reply = create(router, store=False)
    assert reply.status_code == 200
    assert get(router, reply.json()["id"]).status_code == 404
    assert sum(len(one.seen) for one in workers) == 1


def test_the_response_counts_more_than_the_session(engines: MakeEngines, route: MakeRouter) -> None:
    """A session elsewhere stays there; one that has not started does so where the response is."""
    told = [{"url": one.url, "name": f"w{n}"} for n, one in enumerate(engines(2))]
    router = route(*told, strategy={"name": "session", "over": "roundrobin"})

    def ask(session: str, **fields: Any) -> tuple[str, str]:
        """Return the response's id, and the worker."""
        body = {"model": "m", "input": "x", **fields}
        reply = router.http.post(PATH, json=body, headers={"x-session-id": session})
        assert reply.status_code == 200
        return reply.json()["id"], reply.headers["x-warmroute-worker"]

    (_, home), (second, other) = ask("one"), ask("two")
    assert home != other
    assert ask("one", previous_response_id=second)[1] == other
    assert ask("one")[1] == home
    assert ask("new", previous_response_id=second)[1] == other
    assert ask("new")[1] == other


def test_an_explanation_knows_the_worker_too(engines: MakeEngines, route: MakeRouter) -> None:
    """`POST /explain` says where the follow-up would go, and why; so does the answer."""
    workers = engines(3)
    router = route(*(one.url for one in workers), strategy="roundrobin")
    for _ in range(3):
        name = made(router)
        body = {"model": "m", "input": "x", "previous_response_id": name}
        found = router.http.post("/explain?path=/v1/responses", json=body).json()
        assert [one["worker"] in owner(workers, name).url for one in found["workers"]] == [True]
        assert found["reason"] == "response"
        asks = {"x-warmroute-decision": "1"}
        reply = router.http.post("/v1/responses", json=body, headers=asks)
        assert reply.headers["x-warmroute-reason"] == found["words"]
        assert "response" in found["words"]
