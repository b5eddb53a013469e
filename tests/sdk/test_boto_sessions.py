"""Sessions as boto3's callers see them: created, used, closed and expired, over real sockets."""

import re
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
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


class TestCreation:
    """How a new session is reported."""

    def test_the_answer_fits_the_service_model(self, boto: Boto, place: Place) -> None:
        """The pattern comes from the installed botocore."""
        reply = boto.invoke(place.url, OPEN, SessionId="NEW_SESSION").good
        shape = boto.shape("NewSessionResponseHeader")
        assert re.fullmatch(shape["pattern"], reply.output["NewSessionId"])
        assert len(reply.output["NewSessionId"]) <= shape["max"]
        assert reply.status == 200
        assert len(reply.sent) == 1

    def test_the_body_alone_opens_one(self, boto: Boto, place: Place) -> None:
        """The header is not needed."""
        assert "NewSessionId" in boto.invoke(place.url, OPEN).good.output

    def test_a_prompt_that_opens_one_is_answered(self, boto: Boto, place: Place) -> None:
        """The new session comes with the answer, and stays on its worker."""
        reply = boto.invoke(place.url, chat("Hello"), SessionId="NEW_SESSION").good
        assert reply.json["choices"]
        key = reply.output["NewSessionId"].partition(";")[0]
        later = {boto.invoke(place.url, chat("Hello"), SessionId=key).good.worker for _ in range(8)}
        assert later == {reply.worker}

    def test_the_expiry_is_the_lifetime_from_now(self, boto: Boto, place: Place) -> None:
        """In whole seconds, UTC."""
        reply = boto.invoke(place.url, OPEN, SessionId="NEW_SESSION").good
        told = reply.output["NewSessionId"].partition("Expires=")[2]
        ends = datetime.strptime(told, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        date = parsedate_to_datetime(reply.headers["date"])
        assert 59 <= (ends - date).total_seconds() <= 61

    def test_an_id_that_is_taken_is_refused(self, boto: Boto, place: Place) -> None:
        """An id that the client chooses must be new."""
        body = {**OPEN, "extSessionID": uuid.uuid4().hex}
        assert boto.invoke(place.url, body, SessionId="NEW_SESSION").good
        again = boto.invoke(place.url, body, SessionId="NEW_SESSION")
        assert (again.kind, len(again.sent)) == ("ValidationError", 1)


class TestExample:
    """The calls of aws-samples' sticky session example."""

    def test_its_client_works(self, boto: Boto, place: Place) -> None:
        """Open, three turns, close: all on one worker."""
        key = f"conversation-{uuid.uuid4().hex[:8]}"
        options = {"options": {"service": "runtime.sagemaker"}}
        json_ = {"ContentType": "application/json"}
        body: dict[str, Any] = {"extSessionID": key, "requestType": "NEW_SESSION"}
        start = boto.invoke(place.url, body, SessionId="NEW_SESSION", **json_, **options).good
        assert start.output["NewSessionId"].startswith(f"{key}; Expires=")
        workers = set()
        for text in ("Who are you?", "Tell me more.", "And what else?"):
            body = {
                "inputs": text,
                "sampling_params": {"temperature": 0.9, "max_new_token": 12, "do_sample": True},
                "extSessionID": key,
                "requestType": "SESSION",
            }
            turn = boto.invoke(place.url, body, SessionId=key, **json_, **options).good
            assert turn.json["generation"]["text"]
            assert turn.json["generation"]["meta_info"]["completion_tokens"] <= 12
            workers.add(turn.worker)
        assert workers == {start.worker}
        body = {"extSessionID": key, "requestType": "CLOSE_SESSION"}
        end = boto.invoke(place.url, body, SessionId=key, **json_, **options).good
        assert end.output["ClosedSessionId"] == key


class TestUse:
    """A session stays with its worker."""

    def test_fifty_sessions_stay_where_they_are(self, boto: Boto, place: Place) -> None:
        """Six interleaved turns each; every worker has some of the sessions."""
        keys = [opened(boto, place.url) for _ in range(50)]
        where: dict[str, set[str]] = {key: set() for key in keys}
        for turn in range(6):
            calls = {
                key: boto.start(place.url, "invoke_endpoint", chat(f"{turn}"), SessionId=key)
                for key in keys
            }
            for key, number in calls.items():
                where[key].add(boto.reply(number).good.worker)
        assert all(len(workers) == 1 for workers in where.values())
        assert len(set.union(*where.values())) == 4

    def test_eight_at_once_in_one_session(self, boto: Boto, place: Place) -> None:
        """All go to the session's worker."""
        key = opened(boto, place.url)
        calls = [
            boto.start(place.url, "invoke_endpoint", chat(f"{n}"), SessionId=key) for n in range(8)
        ]
        assert len({boto.reply(number).good.worker for number in calls}) == 1

    def test_later_turns_find_the_earlier_ones_cached(self, boto: Boto, place: Place) -> None:
        """According to the worker's own count."""
        key = opened(boto, place.url)
        said = [f"{uuid.uuid4()} " + "All the king's horses. " * 20]
        before = 0
        for _ in range(4):
            answer = boto.invoke(place.url, chat(*said), SessionId=key).good.json
            usage = answer["usage"]
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            assert cached >= before // BLOCK * BLOCK
            assert cached or not before
            before = usage["prompt_tokens"]
            said += [answer["choices"][0]["message"]["content"], "Go on, please."]

    def test_round_robin_finds_less(self, boto: Boto, place: Place, route: MakeRouter) -> None:
        """The same conversation without sessions, over workers in turn."""
        spread = route(*place.fleet.urls, strategy="roundrobin")

        def cached(url: str, **session: str) -> int:
            said, found = [f"{uuid.uuid4()} " + "All the king's men. " * 20], 0
            for _ in range(3):
                answer = boto.invoke(url, chat(*said), **session).good.json
                found += answer["usage"]["prompt_tokens_details"]["cached_tokens"]
                said += [answer["choices"][0]["message"]["content"], "Go on, please."]
            return found

        assert cached(spread.url) < cached(place.url, SessionId=opened(boto, place.url))


class TestEnd:
    """Closing and expiry."""

    @pytest.mark.parametrize("word", ["CLOSE", "CLOSE_SESSION"])
    def test_a_closed_session_is_closed(self, boto: Boto, place: Place, word: str) -> None:
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

    def test_closing_what_never_was(self, boto: Boto, place: Place) -> None:
        """It is refused."""
        reply = boto.invoke(place.url, CLOSE, SessionId=uuid.uuid4().hex)
        assert (reply.code, reply.refusal) == ("ValidationError", 400)

    def test_closing_nothing(self, boto: Boto, place: Place) -> None:
        """An id is required."""
        assert boto.invoke(place.url, CLOSE).kind == "ValidationError"

    def test_expiry_is_strict(self, boto: Boto, place: Place, route: MakeRouter) -> None:
        """With a lifetime of 1 s, 0.9 s is in time; 1.1 s is refused from the first request on."""
        now = [1000.0]
        router = route(*place.fleet.urls, strategy="session", session={"ttl": "1s"})
        sessions = router.door.fleet.pools[0].sessions
        assert sessions is not None
        sessions.lasting = lambda: now[0]
        key = opened(boto, router.url)
        now[0] += 0.9
        assert boto.invoke(router.url, chat("Hello"), SessionId=key).good
        now[0] += 0.2
        for _ in range(2):
            reply = boto.invoke(router.url, chat("Hello"), SessionId=key)
            assert (reply.code, len(reply.sent)) == ("ValidationError", 1)
            assert reply.message
        assert router.metric("warmroute_sessions_ended_total", pool="default", how="expired") == 1

    def test_sliding_sessions_live_on_with_use(
        self, boto: Boto, place: Place, route: MakeRouter
    ) -> None:
        """But no longer than `longest`."""
        now = [1000.0]
        rules = {"ttl": "1s", "sliding": True, "longest": "3s"}
        router = route(*place.fleet.urls, strategy="session", session=rules)
        sessions = router.door.fleet.pools[0].sessions
        assert sessions is not None
        sessions.lasting = lambda: now[0]
        key = opened(boto, router.url)
        for _ in range(3):
            now[0] += 0.8
            assert boto.invoke(router.url, chat("Hello"), SessionId=key).good
        now[0] += 0.7
        assert boto.invoke(router.url, chat("Hello"), SessionId=key).kind == "ValidationError"

    @pytest.mark.parametrize(
        "told", [("SES_TTL_MIN", "7", 420), ("SAGEMAKER_SESSIONS_EXPIRATION", "90", 90)]
    )
    def test_lifetimes_of_the_environment(
        self,
        boto: Boto,
        stub: MakeStub,
        route: MakeRouter,
        monkeypatch: pytest.MonkeyPatch,
        told: tuple[str, str, int],
    ) -> None:
        """Under the names of AWS's containers."""
        name, text, seconds = told
        monkeypatch.setenv(name, text)
        router = route(stub().url, strategy="session")
        sessions = router.door.fleet.pools[0].sessions
        assert sessions is not None
        sessions.clock = sessions.lasting = lambda: 0.0
        reply = boto.invoke(router.url, OPEN, SessionId="NEW_SESSION").good
        ends = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        assert reply.output["NewSessionId"].endswith(f"; Expires={ends}")


BAD = ["bad id!", "a_b", "-a", "a-", "a" * 257, ""]


class TestIds:
    """botocore does not validate ids, so the router does."""

    @pytest.mark.parametrize("key", BAD)
    def test_what_is_no_id_reaches_no_worker(
        self, boto: Boto, stub: MakeStub, route: MakeRouter, key: str
    ) -> None:
        """Neither in the header nor, if it is not empty, in the body."""
        worker = stub()
        router = route(worker.url, strategy="session")
        assert not re.fullmatch(boto.shape("SessionIdHeader")["pattern"], key) or len(key) > 256
        reply = boto.invoke(router.url, chat("Hello"), SessionId=key)
        assert (reply.kind, len(reply.sent)) == ("ValidationError", 1)
        if key:
            body = {**OPEN, "extSessionID": key}
            assert boto.invoke(router.url, body, SessionId="NEW_SESSION").kind == "ValidationError"
        assert worker.requests == []

    def test_a_line_end_is_no_part_of_an_id(
        self, boto: Boto, stub: MakeStub, route: MakeRouter
    ) -> None:
        """Python's `$` would accept it."""
        router = route(stub().url, strategy="session")
        body = {**OPEN, "extSessionID": "a\n"}
        assert boto.invoke(router.url, body, SessionId="NEW_SESSION").kind == "ValidationError"

    def test_the_longest_ids(self, boto: Boto, place: Place) -> None:
        """A new id may have 226 characters, because its expiry has to fit into the header too."""
        unique = uuid.uuid4().hex
        for length, good in ((226, True), (227, False)):
            body = {**OPEN, "extSessionID": unique + "x" * (length - len(unique))}
            reply = boto.invoke(place.url, body, SessionId="NEW_SESSION")
            assert (reply.error is None) == good
        reply = boto.invoke(place.url, chat("Hello"), SessionId="y" * 256)
        assert "not found" in reply.message


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
