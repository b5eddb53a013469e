"""Replays over real sockets, against a server that can misbehave."""

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from router.replay.plan import Options, ReplayError, ReplayPlan
from router.replay.report import Report
from router.replay.run import replay, replay_trace, run
from simulator.traces import TraceRequest, prompt_text
from simulator.workloads import Conversation, Turn
from tests.replay.misbehaving import HEAD, Stub, event, good, whole


@pytest.fixture
def stub() -> Iterator[Stub]:
    server = Stub()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.released.set()
    server.shutdown()
    server.server_close()
    thread.join()


def requests(count: int, at_s: float = 0.0) -> list[TraceRequest]:
    return [TraceRequest(at_s * n, 700, 5, (0, n + 1)) for n in range(count)]


def replayed(stub: Stub, plan: ReplayPlan, **options: object) -> Report:
    sent = msgspec.convert({"url": stub.url, **options}, Options)
    return asyncio.run(replay(plan, sent))


def test_a_trace_is_sent_and_summed_up(stub: Stub) -> None:
    """Every request is answered, and tokens, hits and workers are counted."""
    report = replayed(stub, ReplayPlan("t", requests(4)))
    assert (report.answered, report.failed, report.model) == (4, 0, "first")
    assert (report.prompt_tokens, report.cached_tokens, report.output_tokens) == (400, 240, 8)
    assert (report.hit_rate, report.cached_reported) == (0.6, 4)
    assert report.workers["gpu-0"].requests == 4
    assert report.ttft_s is not None
    assert report.e2e_s is not None
    assert 0 < report.ttft_s.p50 <= report.e2e_s.p50


def test_requests_ask_for_what_the_trace_says(stub: Stub) -> None:
    """The request asks for length, determinism and usage; the prompt is the text of the blocks."""
    replayed(stub, ReplayPlan("t", requests(1)), stream_interval=8, api_key="sesame")
    assert stub.bodies == [
        {
            "path": "/v1/chat/completions",
            "model": "first",
            "messages": [{"role": "user", "content": prompt_text(requests(1)[0])}],
            "max_tokens": 5,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
            "stream_interval": 8,
        }
    ]
    assert stub.heads[0]["authorization"] == "Bearer sesame"


def test_user_and_password_of_a_url_are_sent(stub: Stub) -> None:
    """As HTTP has them; they are part of no `Host`."""
    url = stub.url.replace("http://", "http://anna:s%40fe@")
    replayed(stub, ReplayPlan("t", requests(1)), url=url)
    assert stub.heads[0]["authorization"] == "Basic YW5uYTpzQGZl"
    assert stub.heads[0]["host"] == stub.url.removeprefix("http://")


def test_completions_take_a_prompt(stub: Stub) -> None:
    """Another endpoint, model and lengths, and a URL that ends in /v1."""
    options = Options(
        url=stub.url + "/v1/",
        endpoint="completions",
        model="mine",
        max_tokens=9,
        chars_per_token=1,
        ignore_eos=False,
    )
    asyncio.run(replay(ReplayPlan("t", requests(1)), options))
    (body,) = stub.bodies
    assert (body["path"], body["model"], body["max_tokens"]) == ("/v1/completions", "mine", 9)
    assert len(body["prompt"]) == 700
    assert "ignore_eos" not in body


@pytest.mark.parametrize(
    ("data", "kind", "message"),
    [
        (whole("500 Oops", b'{"error": {"message": "full"}}'), "status 500", "full"),
        (whole("404 No", b"nothing here"), "status 404", "nothing here"),
        (whole("302 Found", b"", b"Location: /x\r\n"), "status 302", "(nothing)"),
        (whole("200 OK", b'{"choices": []}'), "broken stream", "without [DONE]"),
        (good().replace(event("[DONE]"), b""), "broken stream", "without [DONE]"),
        (good()[:-40], "broken stream", "before its answer ended"),
        (HEAD[:-2], "broken stream", "before it answered"),
        (b"", "broken stream", "before it answered"),
        (b"SSH-2.0-what\r\n", "broken stream", "not HTTP"),
        (HEAD + b"zzz\r\n", "broken stream", "not HTTP"),
        (HEAD + event("{garbage") + event("[DONE]") + b"0\r\n\r\n", "broken stream", "{garbage"),
        (HEAD + event('{"error": {"message": "no"}}') + b"0\r\n\r\n", "error event", "no"),
    ],
)
def test_bad_answers_are_counted_by_kind(stub: Stub, data: bytes, kind: str, message: str) -> None:
    """Whatever comes back, the replay goes on and the report says what it was."""
    stub.answer = lambda: data if len(stub.bodies) < 3 else good()
    report = replayed(stub, ReplayPlan("t", requests(3)), concurrency=1, model="m")
    assert report.answered == 1
    assert report.errors[kind].count == 2
    assert message in report.errors[kind].first


def test_an_answer_without_usage_counts_and_is_told(stub: Stub) -> None:
    """Its times count, but it has no tokens."""
    role = '{"choices": [{"delta": {"role": "assistant"}}]}'
    stub.answer = lambda: HEAD + event(role) + event("[DONE]") + b"0\r\n\r\n"
    report = replayed(stub, ReplayPlan("t", requests(1)))
    assert (report.answered, report.prompt_tokens, report.hit_rate) == (1, 0, None)
    assert report.ttft_s is not None
    assert "without usage" in report.warnings[-1]


def test_a_body_that_ends_with_the_connection_is_whole(stub: Stub) -> None:
    """An answer without a length, after an interim one, is valid HTTP."""
    plain = b'data: {"choices": [{"delta": {"content": "a"}}]}\n\ndata: [DONE]\n\n'
    stub.answer = lambda: b"HTTP/1.1 103 Early Hints\r\nX: y\r\n\r\nHTTP/1.1 200 OK\r\n\r\n" + plain
    report = replayed(stub, ReplayPlan("t", requests(2)))
    assert (report.answered, report.errors) == (2, {})
    assert [*report.workers] == ["-"]


def test_nobody_there_is_an_error_of_its_own(stub: Stub) -> None:
    """Refused connections are counted; if the model must be looked up, the replay fails."""
    stub.shutdown()  # else its thread still holds the socket that is being closed
    stub.server_close()
    report = replayed(stub, ReplayPlan("t", requests(2)), model="m")
    assert report.errors["connect"].count == 2
    with pytest.raises(ReplayError, match="/v1/models"):
        replayed(stub, ReplayPlan("t", requests(1)))


@pytest.mark.parametrize(
    "models", [b'{"data": []}', b"<html>", b"[]", b'{"data": [{}]}', b'{"data": null}']
)
def test_no_model_to_find_is_said(stub: Stub, models: bytes) -> None:
    """Garbage in the list of models is a clear error before anything is sent."""
    stub.models = whole("200 OK", models)
    with pytest.raises(ReplayError, match="names none"):
        replayed(stub, ReplayPlan("t", requests(1)))


def test_a_silent_server_times_out(stub: Stub) -> None:
    """An answer that does not come in time is counted as an error."""
    stub.answer = stub.wait
    report = replayed(stub, ReplayPlan("t", requests(1)), timeout_s=0.05)
    assert report.errors["timeout"].count == 1


def test_conversations_carry_the_answers_along(stub: Stub) -> None:
    """Each turn contains the real answer to the previous one."""
    stub.answer = lambda: good(text=f"answer {len(stub.bodies)}")
    turns = (Turn("one?", 3), Turn("two?", 4, think_s=0.01))
    report = replayed(stub, ReplayPlan("c", conversations=[Conversation("c", 0.0, "be", turns)]))
    assert (report.answered, report.planned, report.ideal_hit_rate) == (2, 2, None)
    first, second = (body["messages"] for body in stub.bodies)
    assert [m["content"] for m in first] == ["be", "one?"]
    assert [m["content"] for m in second] == ["be", "one?", "answer 1", "two?"]
    assert [m["role"] for m in second] == ["system", "user", "assistant", "user"]
    assert [body["max_tokens"] for body in stub.bodies] == [3, 4]


def test_a_conversation_ends_with_its_first_error(stub: Stub) -> None:
    """Without an answer the next turn cannot be built, so the rest is skipped."""
    stub.answer = lambda: whole("500 Oops", b"no")
    talk = Conversation("c", 0.0, "be", (Turn("a", 1), Turn("b", 1), Turn("c", 1)))
    report = replayed(stub, ReplayPlan("c", conversations=[talk]))
    assert (report.failed, report.skipped, len(stub.bodies)) == (1, 2, 1)


def test_connections_are_used_again(stub: Stub) -> None:
    """Sequential requests share one connection; listing the models may take another."""
    replayed(stub, ReplayPlan("t", requests(5)), concurrency=1)
    assert stub.connections <= 2


def test_the_cap_on_concurrency_holds_and_is_told(stub: Stub) -> None:
    """No more than the limit are in flight, and the report warns that some waited."""
    report = replayed(stub, ReplayPlan("t", requests(20)), concurrency=2)
    assert stub.most_in_flight <= 2
    assert report.answered == 20
    assert report.waited_for_slot > 0
    assert any("requests waited" in warning for warning in report.warnings)


def test_the_limit_takes_the_first_by_time(stub: Stub) -> None:
    """Requests and conversations are cut together, after the given number of requests."""
    talk = Conversation("c", 0.5, "be", (Turn("a", 1), Turn("b", 1), Turn("c", 1)))
    plan = ReplayPlan("t", requests(5, at_s=1.0), [talk]).limited(3)
    assert len(plan.requests) == 1
    assert [turn.user for turn in plan.conversations[0].turns] == ["a", "b"]
    assert plan.total == 3
    assert replayed(stub, ReplayPlan("t", requests(5)), limit=2).planned == 2


def test_stopping_reports_what_there_is(stub: Stub) -> None:
    """Requests in flight are abandoned, and nothing more is sent."""
    stub.answer = lambda: good() if len(stub.bodies) == 1 else stub.wait()

    async def stopped() -> Report:
        stop = asyncio.Event()
        plan = ReplayPlan("t", [*requests(2), TraceRequest(3600.0, 10, 1, (1,))])
        task = asyncio.create_task(replay(plan, Options(url=stub.url, concurrency=1), stop=stop))
        await asyncio.to_thread(stub.reached.wait, 30)
        stop.set()
        return await task

    report = asyncio.run(stopped())
    assert (report.interrupted, report.answered, report.planned) == (True, 1, 3)
    assert len(stub.bodies) == 2


def test_cancelling_a_replay_raises(stub: Stub) -> None:
    """A caller that cancels gets its cancellation, not a report."""
    stub.answer = stub.wait

    async def cancelled() -> None:
        task = asyncio.create_task(replay(ReplayPlan("t", requests(1)), Options(url=stub.url)))
        await asyncio.to_thread(stub.reached.wait, 30)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled())


def test_ctrl_c_ends_a_run_with_its_report(stub: Stub) -> None:
    """The first interrupt stops the replay and prints what there is."""

    def interrupting() -> bytes:
        os.kill(os.getpid(), signal.SIGINT)
        return stub.wait()

    stub.answer = interrupting
    report = run(ReplayPlan("t", requests(1)), Options(url=stub.url))
    assert (report.interrupted, report.answered) == (True, 0)


def test_progress_is_drawn_on_a_terminal_only(stub: Stub) -> None:
    """A terminal gets a progress bar; other outputs get nothing in so short a run."""
    terminal, plain = StringIO(), StringIO()
    run(ReplayPlan("t", requests(3)), Options(url=stub.url), console=Console(file=plain))
    bar = Console(file=terminal, force_terminal=True, width=100)
    run(ReplayPlan("t", requests(3)), Options(url=stub.url), console=bar)
    assert "in flight" in terminal.getvalue()
    assert plain.getvalue() == ""


def test_a_trace_file_is_replayed(stub: Stub, tmp_path: Path) -> None:
    """It is named after the file; an answer has one token at least."""
    line = '{"timestamp": %d, "input_length": 9, "output_length": 0, "hash_ids": [1]}\n'
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(line % at for at in (0, 0, 5)))
    report = replay_trace(path, Options(url=stub.url, speed=10, rate=2))
    assert (report.answered, report.name) == (3, "trace.jsonl")
    assert {body["max_tokens"] for body in stub.bodies} == {1}


def test_a_bad_trace_is_a_replay_error(tmp_path: Path) -> None:
    """A file that is missing or empty says so."""
    with pytest.raises(ReplayError, match="No such file"):
        replay_trace(tmp_path / "none.jsonl", Options())
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(ReplayError, match="no requests"):
        replay_trace(tmp_path / "empty.jsonl", Options())


@pytest.mark.parametrize(
    "wrong",
    [
        {"rate": 0},
        {"speed": -1.0},
        {"speed": float("inf")},
        {"speed": float("nan")},
        {"limit": 0},
        {"concurrency": 0},
        {"url": "localhost:8080"},
    ],
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    """The error names the option."""
    with pytest.raises(ReplayError, match=next(iter(wrong))):
        Options(**wrong)
