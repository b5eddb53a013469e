"""Sessions and their workers: lost, drained, and with sessions of the workers' own."""

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from simulator.fleet import FleetThread
from simulator.settings import FleetSettings
from tests.reload.changing import change
from tests.sdk.boto.client import Boto
from tests.sdk.container.running import Container
from tests.support import OK, Action, MakeRouter, MakeStub, Stub, until

OPEN = {"requestType": "NEW_SESSION"}
CLOSE = {"requestType": "CLOSE"}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}
SESSIONS = "warmroute_session_events_total"


def opened(boto: Boto, url: str) -> str:
    """Open a session; return its id."""
    reply = boto.invoke(url, OPEN, SessionId="NEW_SESSION").good
    return str(reply.output["NewSessionId"]).partition(";")[0]


class TestLost:
    """A worker is lost; its sessions move or end."""

    def test_another_worker_takes_over(self, boto: Boto, stub: MakeStub, route: MakeRouter) -> None:
        """The id stays the same; header, metric and decision show the move."""
        workers = {worker.url: worker for worker in (stub(), stub(), stub())}
        router = route(*workers, strategy="session")
        key = opened(boto, router.url)
        first = boto.invoke(router.url, CHAT, SessionId=key).good
        workers[f"http://{first.worker}"].stop()
        second = boto.invoke(router.url, CHAT, SessionId=key).good
        assert second.worker != first.worker
        assert second.headers["x-warmroute-session"].startswith("rebound;")
        assert router.metric(SESSIONS, pool="default", event="rebound") == 1
        third = boto.invoke(router.url, CHAT, SessionId=key).good
        assert third.worker == second.worker
        assert third.headers["x-warmroute-session"].startswith("kept;")
        assert third.headers["x-warmroute-decision"].startswith("session;")
        assert router.metric(SESSIONS, pool="default", event="rebound") == 1

    def test_or_the_session_ends(self, boto: Boto, stub: MakeStub, route: MakeRouter) -> None:
        """The first request is told that it is lost, the next that it is unknown; none is sent
        again."""
        workers = {worker.url: worker for worker in (stub(), stub())}
        router = route(*workers, strategy="session", session={"on_worker_lost": "error"})
        key = opened(boto, router.url)
        first = boto.invoke(router.url, CHAT, SessionId=key).good
        workers[f"http://{first.worker}"].stop()
        for word in ("lost", "not found"):
            reply = boto.invoke(router.url, CHAT, SessionId=key)
            assert (reply.code, len(reply.sent)) == ("ValidationError", 1)
            assert word in reply.message
        assert router.metric("warmroute_open_sessions", pool="default") == 0

    def test_whoever_holds_most_takes_over(self, route: MakeRouter) -> None:
        """The worker that was sent the same prefix takes over, though it never had the session."""
        settings = FleetSettings(workers=3, profile="toy", models=("toy",), kv_events=False)
        with FleetThread(settings) as fleet:
            listed = [{"url": url, "name": f"w{n}"} for n, url in enumerate(fleet.urls)]
            router = route(*listed, strategy="session")
            text = f"{uuid.uuid4()} " + "All the king's horses. " * 300
            body = {"messages": [{"role": "user", "content": text}], "max_tokens": 1}

            def ask(session: str) -> str:
                named = {"x-session-id": session}
                reply = router.http.post("/v1/chat/completions", json=body, headers=named)
                return str(reply.headers["x-warmroute-worker"])

            home = ask("a")
            drained = [{**one, "drain": one["name"] == home} for one in listed]
            change(router, *drained, strategy="session")
            second = ask("b")
            assert second != home
            change(router, *listed, strategy="session")
            fleet.run(fleet.workers[int(home[1:])].stop())
            assert ask("a") == second


class TestDrain:
    """A worker is being removed."""

    def test_its_sessions_stay_until_it_is_gone(
        self, boto: Boto, stub: MakeStub, route: MakeRouter
    ) -> None:
        """While it drains nothing new goes there; when it is removed, only its sessions move."""
        workers = [stub() for _ in range(4)]
        listed = [{"url": worker.url, "name": f"w{n}"} for n, worker in enumerate(workers)]
        router = route(*listed, strategy="session")
        keys = [opened(boto, router.url) for _ in range(16)]

        def where() -> dict[str, str]:
            return {k: boto.invoke(router.url, CHAT, SessionId=k).good.worker for k in keys}

        before = where()
        assert set(before.values()) == {"w0", "w1", "w2", "w3"}
        change(router, {**listed[0], "drain": True}, *listed[1:], strategy="session")
        assert where() == before
        fresh = {boto.invoke(router.url, OPEN).good.headers["x-warmroute-worker"] for _ in range(8)}
        plain = {boto.invoke(router.url, CHAT).good.worker for _ in range(8)}
        assert fresh | plain == {"w1", "w2", "w3"}
        change(router, *listed[1:], strategy="session")
        after = where()
        moved = {key for key in keys if before[key] != after[key]}
        assert moved == {key for key in keys if before[key] == "w0"}
        assert where() == after


class TestDialects:
    """All spellings that workers and clients use."""

    @pytest.mark.parametrize(
        "line",
        [
            b"X-Amzn-SageMaker-Session-Id: w-1; Expires=2030-01-02T03:04:05Z",
            b"X-Amzn-SageMaker-New-Session-Id: w-1",
        ],
    )
    def test_the_id_is_learned(
        self, boto: Boto, stub: MakeStub, route: MakeRouter, line: bytes
    ) -> None:
        """From either header, with or without expiry; clients always see the same form."""
        worker = stub([_said(line)])
        router = route({"url": worker.url, "stateful": True}, strategy="session")
        reply = boto.invoke(router.url, OPEN, SessionId="NEW_SESSION").good
        key, _, ends = reply.output["NewSessionId"].partition("; Expires=")
        assert key == "w-1"
        assert ends == "2030-01-02T03:04:05Z" or b"Expires" not in line
        assert "x-amzn-sagemaker-session-id" not in reply.headers
        worker.script = OK
        named = {"CustomAttributes": "c", "InferenceId": "i-1"}
        assert boto.invoke(router.url, CHAT, SessionId=key, **named).good
        path, *head = worker.requests[-1].partition(b"\r\n\r\n")[0].lower().split(b"\r\n")
        assert path == b"post /invocations http/1.1"
        assert b"x-amzn-sagemaker-session-id: w-1" in head
        assert b"x-amzn-sagemaker-custom-attributes: c" in head
        assert b"x-amzn-sagemaker-inference-id: i-1" in head
        assert not any(one.startswith((b"authorization", b"x-amz-")) for one in head)
        assert boto.invoke(router.url, CLOSE, SessionId=key).good.output["ClosedSessionId"] == key
        assert boto.invoke(router.url, CHAT, SessionId=key).code == "ValidationError"
        worker.script = [_said(line)]
        answered = boto.invoke(router.url, CHAT, SessionId="NEW_SESSION").good
        assert (answered.output["NewSessionId"].partition(";")[0], answered.json) == ("w-1", {})

    def test_a_worker_that_is_lost_takes_its_sessions_along(
        self, boto: Boto, stub: MakeStub, route: MakeRouter
    ) -> None:
        """No other worker has their state."""
        workers: dict[str, Stub] = {}
        for number in range(2):
            line = b"X-Amzn-SageMaker-Session-Id: w-%d" % number
            worker = stub([_said(line)])
            workers[worker.url] = worker
        router = route(*({"url": u, "stateful": True} for u in workers), strategy="session")
        key = opened(boto, router.url)
        for worker in workers.values():
            worker.script = OK
        first = boto.invoke(router.url, CHAT, SessionId=key).good
        workers[f"http://{first.worker}"].stop()
        assert "lost" in boto.invoke(router.url, CHAT, SessionId=key).message


def _said(line: bytes) -> Action:
    return b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n%b\r\n\r\n{}" % line


@pytest.fixture(scope="module")
def containers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Container]]:
    """Two real containers of AWS's library, each of which keeps sessions itself."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(Container(Path(tmp_path_factory.mktemp("sessions"))))
            for _ in range(2)
        ]


@pytest.mark.long
class TestContainers:
    """The library that is behind vLLM's own `/invocations`."""

    @pytest.mark.parametrize("spelling", ["documented", "example"])
    def test_a_session_lives_in_one_of_them(
        self, boto: Boto, containers: list[Container], route: MakeRouter, spelling: str
    ) -> None:
        """Opened, used, closed and gone, with either spelling of the client's."""
        listed = [{"url": one.url, "stateful": True} for one in containers]
        router = route(*listed, strategy="session")
        named = {"extSessionID": f"conversation-{uuid.uuid4().hex[:8]}"}
        more: dict[str, Any] = named if spelling == "example" else {}
        reply = boto.invoke(router.url, {**OPEN, **more}, SessionId="NEW_SESSION").good
        key = reply.output["NewSessionId"].partition(";")[0]
        assert key == named["extSessionID"] or not more
        turn = {"inputs": "Hello", "requestType": "SESSION"} if more else CHAT
        answers = [boto.invoke(router.url, turn, SessionId=key).good for _ in range(4)]
        assert len({answer.json["pid"] for answer in answers}) == 1
        streamed = boto.stream(router.url, CHAT, SessionId=key).good
        assert b'"pid"' in b"".join(streamed.parts)
        word = {"requestType": "CLOSE_SESSION", **more} if more else CLOSE
        assert boto.invoke(router.url, word, SessionId=key).good.output["ClosedSessionId"] == key
        for body in (word, turn):
            assert boto.invoke(router.url, body, SessionId=key).code == "ValidationError"

    def test_one_that_keeps_no_sessions_sees_none(
        self, boto: Boto, tmp_path: Path, route: MakeRouter
    ) -> None:
        """Such a container answers 400 if there is any session id."""
        with Container(tmp_path, sessions=False) as plain:
            bad = httpx.post(
                f"{plain.url}/invocations", json=CHAT, headers={"X-Amzn-SageMaker-Session-Id": "a"}
            )
            assert bad.status_code == 400
            router = route({"url": plain.url, "stateful": False}, strategy="session")
            key = opened(boto, router.url)
            assert boto.invoke(router.url, CHAT, SessionId=key).good
            assert "x-amzn-sagemaker-session-id" not in plain.seen()[-1]["headers"]
            until(router.idle)
