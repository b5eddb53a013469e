"""Explanations of decisions: in answers, by a running router, and from a settings file."""

import json
from pathlib import Path

import pytest

from tests.commands import run
from tests.support import Action, MakeRouter, MakeStub, until

PATH = "/v1/chat/completions"
OPS = "operators-key-" + "o" * 32
WORDS = "a secret of somebody's "


def chat(text: str) -> dict[str, object]:
    """A chat request with this text."""
    return {"model": "m", "messages": [{"role": "user", "content": text}]}


def test_an_answer_tells_the_whole_decision_when_asked(stub: MakeStub, route: MakeRouter) -> None:
    """The request field `x-warmroute-decision: all` adds reason and costs to the answer."""
    router = route(stub().url, stub().url)
    plain = router.http.post(PATH, json=chat("hello"))
    assert "x-warmroute-reason" not in plain.headers
    asked = router.http.post(PATH, json=chat("hello"), headers={"x-warmroute-decision": "all"})
    assert "cheapest" in asked.headers["x-warmroute-reason"]
    costs = asked.headers.get_list("x-warmroute-cost")
    assert len(costs) == 2
    assert costs[0].startswith(asked.headers["x-warmroute-worker"])
    for cost in costs:
        for term in ("held=", "wait=", "prefill=", "price=", "decode=", "room=", "home="):
            assert term in cost


def test_a_router_before_a_router_explains_its_own_choice(
    stub: MakeStub, route: MakeRouter
) -> None:
    """What the one behind it explained is not passed on: it names other workers."""
    inner = route({"url": stub().url, "name": "b"}, strategy="roundrobin")
    outer = route({"url": str(inner.http.base_url), "name": "a"}, strategy="roundrobin")
    asked = outer.http.post(PATH, json=chat("hello"), headers={"x-warmroute-decision": "all"})
    assert asked.headers.get_list("x-warmroute-reason") == ["It is a's turn."]
    assert asked.headers.get_list("x-warmroute-cost") == ["a"]


@pytest.mark.parametrize("strategy", ["roundrobin", "chbl"])
def test_no_costs_are_made_up(stub: MakeStub, route: MakeRouter, strategy: str) -> None:
    """Where none are compared, all numbers are null."""
    router = route({"url": stub().url, "name": "a"}, strategy=strategy)
    (term,) = router.http.post("/explain", json=chat("hello")).json()["workers"]
    assert (term.pop("worker"), term.pop("preempts")) == ("a", 0)
    assert {"held_tokens", "wait", "total"} <= set(term)
    assert set(term.values()) == {None}


def test_an_answer_after_a_failover_names_both(stub: MakeStub, route: MakeRouter) -> None:
    """After a failover, the reason names the worker that was chosen and the one that answered."""
    full: list[Action] = [b"HTTP/1.1 503 Full\r\ncontent-length: 0\r\n\r\n"]
    workers = [{"url": stub(full).url, "name": "a"}, {"url": stub().url, "name": "b"}]
    router = route(*workers, strategy="roundrobin")
    asked = router.http.post(PATH, json=chat("hello"), headers={"x-warmroute-decision": "all"})
    assert asked.headers["x-warmroute-worker"] == "b"
    assert asked.headers["x-warmroute-decision"].partition(";")[0] == "failover"
    assert "But a did not take the request: b answered." in asked.headers["x-warmroute-reason"]
    assert asked.headers.get_list("x-warmroute-cost")[0].partition(";")[0] == "a"


def test_a_running_router_explains_without_sending(stub: MakeStub, route: MakeRouter) -> None:
    """`/explain` names the worker that has the prefix, and sends nothing to a worker."""
    workers = [stub(), stub()]
    router = route(*(worker.url for worker in workers))
    text = WORDS * 2000
    home = router.http.post(PATH, json=chat(text)).headers["x-warmroute-worker"]
    until(router.idle)
    before = sum(len(worker.requests) for worker in workers)
    answer = router.http.post("/explain", json=chat(text + "and more"))
    found = answer.json()
    assert answer.status_code == 200
    assert (found["reason"], found["workers"][0]["worker"]) == ("prefix", home)
    assert found["workers"][0]["held_tokens"] > 0.9 * found["tokens"]
    assert WORDS.strip() not in answer.text
    assert sum(len(worker.requests) for worker in workers) == before
    assert router.idle()


def test_what_cannot_be_explained(stub: MakeStub, route: MakeRouter) -> None:
    """Invalid requests to `/explain` get the errors that the endpoint itself would give."""
    router = route(stub().url)
    assert router.http.post("/explain", content=b"{").status_code == 400
    assert router.http.post("/explain", json={**chat("x"), "model": "no"}).status_code == 404
    refused = router.http.post("/explain", params={"path": "/nope"}, json=chat("x"))
    assert refused.status_code == 400
    assert "/v1/completions" in refused.text
    assert router.http.get("/explain").status_code == 405
    too_much = router.http.post("/explain", json={**chat("x"), "n": 1000})
    assert (too_much.status_code, "`n` is over" in too_much.text) == (400, True)


def test_explaining_is_for_operators(
    stub: MakeStub, route: MakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`/explain` needs an operators' key, as it reveals whether a prompt was sent before."""
    monkeypatch.setenv("OPS_KEY", OPS)
    router = route(stub().url, admin={"keys": [{"name": "ops", "key": "${OPS_KEY}"}]})
    assert router.http.post("/explain", json=chat("x")).status_code == 401
    key = {"authorization": f"Bearer {OPS}"}
    assert router.http.post("/explain", json=chat("x"), headers=key).status_code == 200


def test_the_command(stub: MakeStub, route: MakeRouter, tmp_path: Path) -> None:
    """`warmroute explain` works from a file alone and with a running router, as table or JSON."""
    router = route(stub().url)
    file, body = tmp_path / "c.yaml", tmp_path / "body.json"
    file.write_text("workers: [{url: 'http://127.0.0.1:9', models: [m]}]\n")
    body.write_text(json.dumps(chat("hello " * 3000)))
    offline = run("explain", file, "--request", body)
    assert offline.returncode == 0, offline.stderr
    assert "cold: No worker holds any of the prompt" in offline.stdout
    assert "m, pool default: " in offline.stdout
    router.http.post(PATH, json=chat("hello " * 3000))
    until(router.idle)
    done = run("explain", file, "--request", body, "--url", router.url, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["reason"], found["pool"]) == ("prefix", "default")


@pytest.mark.long
@pytest.mark.timeout(180)
def test_the_command_with_wrong_input(stub: MakeStub, route: MakeRouter, tmp_path: Path) -> None:
    """Wrong input gives exit code 2 and a message, with a running router too.

    A router that cannot be reached, or lacks the model, gives 1.
    """
    router = route(stub().url)
    file, body = tmp_path / "c.yaml", tmp_path / "body.json"
    file.write_text("workers: [{url: 'http://127.0.0.1:9', models: [m]}]\n")
    command = ("explain", file, "--request", body)
    live = ("--url", router.url)

    def failed(*options: object) -> tuple[int, str]:
        done = run(*command, *options)
        assert done.stdout == ""
        return done.returncode, done.stderr.replace("\n", "")

    assert "No such file" in failed()[1]
    body.write_text("[1]")
    for where in ((), live):
        code, said = failed(*where)
        assert (code, "body.json: " in said) == (2, True)
    body.write_text(json.dumps({**chat("x"), "n": 1000}))
    assert "`n` is over" in failed()[1]
    body.write_text(json.dumps(chat("x")))
    for where in ((), live):
        code, said = failed(*where, "--path", "/nope")
        assert (code, said.startswith("--path: '/nope'")) == (2, True)
    code, said = failed(*live, "--as", "me")
    assert (code, said.startswith("--as: 'me' is no key")) == (2, True)
    code, said = failed("--url", "http://127.0.0.1:9")
    assert (code, "does not answer" in said) == (1, True)
    body.write_text(json.dumps({**chat("x"), "model": "no"}))
    code, said = failed(*live)
    assert (code, f"{router.url} answered 404" in said) == (1, True)
