"""Sessions as boto3's callers see them: created, used, closed and expired, over real sockets."""

import ast
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from simulator.fleet import FleetThread
from simulator.settings import FleetSettings
from tests.sdk.boto.client import Boto
from tests.support import MakeRouter, MakeStub, Router, until

OPEN = {"requestType": "NEW_SESSION"}
CLOSE = {"requestType": "CLOSE"}
BLOCK = 16


def chat(*texts: str, **more: Any) -> dict[str, Any]:
    """Return a conversation with user and assistant in turn."""
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": text} for n, text in enumerate(texts)]
    return {"messages": messages, "max_tokens": 4, **more}


class Place(NamedTuple):
    """Four workers behind a router that keeps sessions."""

    fleet: FleetThread
    router: Router

    @property
    def url(self) -> str:
        return self.router.url


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    """One for all tests of the module."""
    with ExitStack() as stack:
        settings = FleetSettings(workers=4, profile="toy", models=("toy",), kv_events=False)
        fleet = stack.enter_context(FleetThread(settings))
        router = Router({"workers": fleet.urls, "strategy": "session", "session": {"ttl": "60s"}})
        stack.callback(router.stop)
        yield Place(fleet, router)


def opened(boto: Boto, url: str) -> str:
    """Open a session; return its id."""
    reply = boto.invoke(url, OPEN, SessionId="NEW_SESSION").good
    return str(reply.output["NewSessionId"]).partition(";")[0]


def test_the_answer_to_a_new_session(boto: Boto, place: Place) -> None:
    """It fits botocore's model, and the expiry is the lifetime from now, in seconds, UTC."""
    shape = boto.shape("NewSessionResponseHeader")
    for named in ({"SessionId": "NEW_SESSION"}, {}):  # the body alone opens one too
        reply = boto.invoke(place.url, OPEN, **named).good
        assert (reply.status, len(reply.sent)) == (200, 1)
        told = reply.output["NewSessionId"]
        assert re.fullmatch(shape["pattern"], told)
        assert len(told) <= shape["max"]
        text = told.partition("Expires=")[2]
        ends = datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        date = parsedate_to_datetime(reply.headers["date"])
        assert 59 <= (ends - date).total_seconds() <= 61


def test_a_prompt_that_opens_one_is_answered(boto: Boto, place: Place) -> None:
    """The new session comes with the answer, and stays on its worker."""
    reply = boto.invoke(place.url, chat("Hello"), SessionId="NEW_SESSION").good
    assert reply.json["choices"]
    key = reply.output["NewSessionId"].partition(";")[0]
    later = {boto.invoke(place.url, chat("Hello"), SessionId=key).good.worker for _ in range(8)}
    assert later == {reply.worker}


def test_an_id_that_is_taken_is_refused(boto: Boto, place: Place) -> None:
    """An id that the client chooses must be new."""
    body = {**OPEN, "extSessionID": uuid.uuid4().hex}
    assert boto.invoke(place.url, body, SessionId="NEW_SESSION").good
    again = boto.invoke(place.url, body, SessionId="NEW_SESSION")
    assert (again.kind, len(again.sent)) == ("ValidationError", 1)


def test_the_client_of_aws_s_example(boto: Boto, place: Place) -> None:
    """aws-samples' sticky sessions: open, three turns, close, all on one worker."""
    key = f"conversation-{uuid.uuid4().hex[:8]}"
    more: dict[str, Any] = {"options": {"service": "runtime.sagemaker"}}
    more["ContentType"] = "application/json"
    body: dict[str, Any] = {"extSessionID": key, "requestType": "NEW_SESSION"}
    start = boto.invoke(place.url, body, SessionId="NEW_SESSION", **more).good
    assert start.output["NewSessionId"].startswith(f"{key}; Expires=")
    for text in ("Who are you?", "Tell me more.", "And what else?"):
        body = {
            "inputs": text,
            "sampling_params": {"temperature": 0.9, "max_new_token": 12, "do_sample": True},
            "extSessionID": key,
            "requestType": "SESSION",
        }
        turn = boto.invoke(place.url, body, SessionId=key, **more).good
        assert turn.json["generation"]["text"]
        assert turn.json["generation"]["meta_info"]["completion_tokens"] <= 12
        assert turn.worker == start.worker
    body = {"extSessionID": key, "requestType": "CLOSE_SESSION"}
    end = boto.invoke(place.url, body, SessionId=key, **more).good
    assert end.output["ClosedSessionId"] == key


def test_sessions_stay_where_they_are(boto: Boto, place: Place) -> None:
    """Thirty, with four turns each, all at once; every worker has some of them."""
    keys = [opened(boto, place.url) for _ in range(30)]
    where: dict[str, set[str]] = {key: set() for key in keys}
    calls = [
        (key, boto.start(place.url, "invoke_endpoint", chat(f"{turn}"), SessionId=key))
        for turn in range(4)
        for key in keys
    ]
    for key, number in calls:
        where[key].add(boto.reply(number).good.worker)
    assert all(len(workers) == 1 for workers in where.values())
    assert len(set.union(*where.values())) == 4


def test_later_turns_find_the_earlier_ones_cached(
    boto: Boto, place: Place, route: MakeRouter
) -> None:
    """According to the worker's own count, and more than if workers take turns."""
    spread = route(*place.fleet.urls, strategy="roundrobin")

    def cached(url: str, **session: str) -> list[tuple[int, int]]:
        said, found = [f"{uuid.uuid4()} " + "All the king's horses. " * 20], []
        for _ in range(4):
            answer = boto.invoke(url, chat(*said), **session).good.json
            usage = answer["usage"]
            found.append((usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]))
            said += [answer["choices"][0]["message"]["content"], "Go on, please."]
        return found

    turns = cached(place.url, SessionId=opened(boto, place.url))
    for (before, _), (_, now) in pairwise(turns):
        assert now >= before // BLOCK * BLOCK > 0
    assert sum(n for _, n in cached(spread.url)) < sum(n for _, n in turns)


@pytest.mark.parametrize("word", ["CLOSE", "CLOSE_SESSION"])
def test_a_closed_session_is_closed(boto: Boto, place: Place, word: str) -> None:
    """With either spelling; later requests are refused, and boto3 does not retry them."""
    before = place.router.metric("warmroute_open_sessions", pool="default")
    key = opened(boto, place.url)
    body = {"requestType": word}
    assert boto.invoke(place.url, body, SessionId=key).good.output["ClosedSessionId"] == key
    for again in (chat("Hello"), body):
        reply = boto.invoke(place.url, again, SessionId=key)
        assert (reply.kind, reply.refusal, len(reply.sent)) == ("ValidationError", 400, 1)
        assert reply.message
    assert place.router.metric("warmroute_open_sessions", pool="default") == before


def test_closing_nothing(boto: Boto, place: Place) -> None:
    """An id is required, of a session that is open."""
    assert boto.invoke(place.url, CLOSE).kind == "ValidationError"
    unknown = boto.invoke(place.url, CLOSE, SessionId=uuid.uuid4().hex)
    assert (unknown.code, unknown.refusal) == ("ValidationError", 400)


@pytest.mark.parametrize("sliding", [False, True])
def test_expiry_is_strict(boto: Boto, place: Place, route: MakeRouter, sliding: bool) -> None:
    """With a lifetime of 1 s, 0.9 s is in time, and 1.1 s is refused from the first request on.

    Sliding sessions live on with use, but no longer than `longest`.
    """
    now = [1000.0]
    rules = {"ttl": "1s", **({"sliding": True, "longest": "3s"} if sliding else {})}
    router = route(*place.fleet.urls, strategy="session", session=rules)
    sessions = router.door.fleet.pools[0].sessions
    assert sessions is not None
    sessions.lasting = lambda: now[0]
    key = opened(boto, router.url)
    for _ in range(3 if sliding else 1):
        now[0] += 0.9
        assert boto.invoke(router.url, chat("Hello"), SessionId=key).good
    now[0] += 0.4 if sliding else 0.2
    for _ in range(2):
        reply = boto.invoke(router.url, chat("Hello"), SessionId=key)
        assert (reply.code, len(reply.sent), bool(reply.message)) == ("ValidationError", 1, True)
    assert router.metric("warmroute_sessions_ended_total", pool="default", how="expired") == 1


def test_what_is_no_id_reaches_no_worker(boto: Boto, stub: MakeStub, route: MakeRouter) -> None:
    """botocore does not validate ids, in the header or in the body, so the router does."""
    worker = stub()
    router = route(worker.url, strategy="session")
    for key in ("bad id!", "a_b", "-a", "a-", "a" * 257, ""):
        assert not re.fullmatch(boto.shape("SessionIdHeader")["pattern"], key) or len(key) > 256
        reply = boto.invoke(router.url, chat("Hello"), SessionId=key)
        assert (reply.kind, len(reply.sent)) == ("ValidationError", 1)
    for key in ("bad id!", "a" * 257, "a\n"):
        body = {**OPEN, "extSessionID": key}
        assert boto.invoke(router.url, body, SessionId="NEW_SESSION").kind == "ValidationError"
    assert worker.requests == []


def test_the_longest_ids(boto: Boto, place: Place) -> None:
    """A new id may have 226 characters, because its expiry has to fit into the header too."""
    unique = uuid.uuid4().hex
    for length, good in ((226, True), (227, False)):
        body = {**OPEN, "extSessionID": unique + "x" * (length - len(unique))}
        reply = boto.invoke(place.url, body, SessionId="NEW_SESSION")
        assert (reply.error is None) == good
    assert "not found" in boto.invoke(place.url, chat("Hello"), SessionId="y" * 256).message


def test_sessions_are_listed_and_closed_by_operators(boto: Boto, place: Place) -> None:
    """Operators use `/sessions`."""
    key = opened(boto, place.url)
    listed = {one["id"]: one for one in place.router.http.get("/sessions").json()}
    assert listed[key]["pool"] == "default"
    assert listed[key]["worker"] in {worker.name for worker in place.router.door.fleet.workers}
    assert place.router.http.delete(f"/sessions/{key}").status_code == 204
    assert place.router.http.delete(f"/sessions/{key}").status_code == 404
    assert boto.invoke(place.url, chat("Hello"), SessionId=key).kind == "ValidationError"


def test_without_sessions_a_session_is_refused(
    boto: Boto, stub: MakeStub, route: MakeRouter
) -> None:
    """A pool with another strategy refuses it, but answers prompts without one."""
    router = route(stub().url)
    assert "strategy" in boto.invoke(router.url, OPEN, SessionId="NEW_SESSION").message
    assert boto.invoke(router.url, chat("Hello")).good
    until(router.idle)


def test_json_is_what_the_worker_said(boto: Boto, stub: MakeStub, route: MakeRouter) -> None:
    """A chat's body and its answer pass byte for byte."""
    answer = b'{ "choices":[] ,"id":"\\u0041"}'
    worker = stub([b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(answer) + answer])
    router = route(worker.url, strategy="session")
    body = b'{ "messages":[{"role":"user","content":"\\u0041"}] ,"max_tokens": 1 }'
    reply = boto.invoke(router.url, body).good
    assert worker.requests[-1].endswith(b"\r\n\r\n" + body)
    assert reply.body == answer


@pytest.mark.long
def test_the_script_of_the_manual(boto: Boto, place: Place) -> None:
    """Its three turns go to one worker, and cached tokens grow with each."""
    page = Path(__file__).parents[2].joinpath("docs", "sessions.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    script = next(block for block in blocks if "boto3.client" in block)
    start = f"import sys; sys.path.insert(0, {str(boto.folder)!r})\n"
    text = start + script.replace("http://127.0.0.1:8080", place.url)
    done = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", text],
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
    )
    workers, usages = zip(*(line.split(" ", 1) for line in done.stdout.splitlines()), strict=True)
    cached = [ast.literal_eval(u)["prompt_tokens_details"]["cached_tokens"] for u in usages]
    assert len(set(workers)) == 1
    assert 0 <= cached[0] < cached[1] < cached[2]
