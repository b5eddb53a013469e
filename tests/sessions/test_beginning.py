"""How a session begins: by which id, and on which worker."""

from typing import Any

from tests.sessions.asking import CHAT, ask
from tests.support import MakeRouter, MakeStub


def test_an_id_that_nobody_knows(stub: MakeStub, route: MakeRouter) -> None:
    """It begins a session; with `create: false` it is a 404. Requests without an id are served."""
    worker = stub()
    for create in (True, False):
        router = route(worker.url, strategy="session", session={"create": create})
        reply = ask(router, "a")
        if create:
            assert reply.headers["x-warmroute-session"].startswith("new;")
        else:
            assert (reply.status_code, reply.json()["error"]["code"]) == (404, "session_not_found")
        assert [one["id"] for one in router.http.get("/sessions").json()] == ["a"] * create
        assert ask(router).status_code == 200


def test_where_the_id_is_looked_for(stub: MakeStub, route: MakeRouter) -> None:
    """The id is in AWS's header, or else the configured header, or else the field of the body."""
    names = {"header": "X-User-Id", "field": "user"}
    worker = stub()
    router = route(worker.url, strategy="session", session=names)

    def asked(body: dict[str, Any], **headers: str) -> list[str]:
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        url = "/v1/chat/completions"
        assert router.http.post(url, json={**CHAT, **body}, headers=fields).status_code == 200
        return sorted(one["id"] for one in router.http.get("/sessions").json())

    assert asked({"user": "ann@example.com"}) == ["ann@example.com"]
    assert asked({"user": "ann@example.com"}, x_user_id="b_2") == ["ann@example.com", "b_2"]
    assert b"x-user-id" not in worker.requests[-1].lower()
    aws = {"x_amzn_sagemaker_session_id": "c-3", "x_user_id": "b_2"}
    assert asked({}, **aws) == ["ann@example.com", "b_2", "c-3"]
    assert asked({}, x_session_id="d") == ["ann@example.com", "b_2", "c-3"]
    wrong = router.http.post("/v1/chat/completions", json={**CHAT, "user": [1]})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "user")
    assert router.http.delete("/sessions/ann%40example.com").status_code == 204


def test_new_sessions_of_openai_clients(stub: MakeStub, route: MakeRouter) -> None:
    """NEW_SESSION in AWS's header begins a session with an id made by the router."""
    router = route(stub().url, strategy="session")
    named = {"X-Amzn-SageMaker-Session-Id": "NEW_SESSION"}
    reply = router.http.post("/v1/chat/completions", json=CHAT, headers=named)
    key = reply.headers["x-amzn-sagemaker-new-session-id"].partition(";")[0]
    assert reply.headers["x-warmroute-session"].startswith("new;")
    assert ask(router, key).headers["x-warmroute-session"].startswith("kept;")


def test_a_new_session_s_id_is_told_in_a_stream(stub: MakeStub, route: MakeRouter) -> None:
    """Comments wait until its worker is known, or the header with its id would be too late."""
    stream = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 14\r\n\r\n"
    worker = stub([0.2, stream + b"data: [DONE]\n\n"])
    router = route(worker.url, strategy="session", timeouts={"comment": "20ms"})
    named = {"X-Amzn-SageMaker-Session-Id": "NEW_SESSION"}
    body = {**CHAT, "stream": True}
    reply = router.http.post("/v1/chat/completions", json=body, headers=named)
    key = reply.headers["x-amzn-sagemaker-new-session-id"].partition(";")[0]
    assert [one["id"] for one in router.http.get("/sessions").json()] == [key]
    more = router.http.post("/v1/chat/completions", json=body, headers={"x-session-id": key})
    assert more.content.startswith(b":")


def test_a_new_session_s_worker_refuses(stub: MakeStub, route: MakeRouter) -> None:
    """The session begins on another worker, even if sessions end with their worker."""
    workers = [stub() for _ in range(2)]
    rules = {"on_worker_lost": "error"}
    router = route(*(one.url for one in workers), strategy="session", session=rules)
    workers[0].stop()
    replies = [ask(router, key) for key in "abcd"]
    assert {reply.status_code for reply in replies} == {200}
    assert {reply.headers["x-warmroute-session"].partition(";")[0] for reply in replies} == {"new"}
    assert router.metric("warmroute_session_events_total", pool="default", event="new") == 4
