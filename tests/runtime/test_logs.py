"""Log lines, plain or JSON, without prompts or keys, and for a reader that hangs."""

import io
import json
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

import httpx
import pytest

from router.runtime import logs
from router.runtime.logs import MAX_WRITE_CHARS, NonBlockingHandler
from simulator.fleet import FleetThread
from simulator.settings import FleetSettings
from tests.commands import ENV, started
from tests.support import MakeStub, until

PROMPT = "a-most-recognisable-prompt"
CLIENT_KEY = "sk-the-clients-own-key"
WORKER_KEY = "sk-the-workers-own-key"
SALT = "a-secret-salt"


@pytest.fixture
def _logging() -> Iterator[None]:
    """Restore the logging configuration after the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    httpx_level = logging.getLogger("httpx").level
    filters = logging.getLogger("uvicorn.error").filters[:]
    yield
    root.handlers[:], root.level = handlers, level
    logging.getLogger("httpx").setLevel(httpx_level)
    logging.getLogger("uvicorn.error").filters[:] = filters


@pytest.mark.usefixtures("_logging")
def test_plain(capsys: pytest.CaptureFixture[str]) -> None:
    """A line has a time, a level and a message."""
    logs.set_up("info")
    logging.getLogger("warmroute.test").warning("worker %s is gone", "gpu-1")
    logging.getLogger("warmroute.test").debug("not shown")
    output = capsys.readouterr()
    assert output.out == ""
    (line,) = output.err.splitlines()
    assert line[:4].isdigit()
    assert line.endswith("WARNING worker gpu-1 is gone")


@pytest.mark.usefixtures("_logging")
def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Every record is one line with one JSON object, whatever it contains, exceptions included."""
    logs.set_up("debug", "json")
    log = logging.getLogger("warmroute.test")
    log.info('quotes " and\nnew lines \u2028 and \x00')
    try:
        raise ValueError("many\nlines")
    except ValueError:
        log.exception("it failed")
    lines = capsys.readouterr().err.split("\n")
    first, second = map(json.loads, lines[:2])
    assert lines[2:] == [""]
    assert first["message"] == 'quotes " and\nnew lines \u2028 and \x00'
    assert (first["level"], first["logger"]) == ("info", "warmroute.test")
    assert first["time"].endswith("+00:00")
    assert "ValueError: many\nlines" in second["exception"]


@pytest.mark.usefixtures("_logging")
def test_level(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing below the level is written, not even the probes that httpx logs."""
    logs.set_up("error")
    logging.getLogger("warmroute.test").warning("no")
    logging.getLogger("httpx").info("no")
    logging.getLogger("warmroute.test").error("yes")
    assert [line.split()[-1] for line in capsys.readouterr().err.splitlines()] == ["yes"]


@contextmanager
def served(folder: Path, text: str) -> Iterator[tuple[str, Path]]:
    """Run the real command with these settings; yield its URL and the path of its log."""
    config = folder / "warmroute.yaml"
    config.write_text(f"listen: 127.0.0.1:0\n{text}")
    with started(folder, "serve", "--config", config) as running:
        yield running.url(), running.err


def test_no_word_of_a_prompt_or_a_key(
    tmp_path: Path, stub: MakeStub, dead_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At debug level, and while requests fail, the log has no prompt, key or cache salt."""
    monkeypatch.setitem(ENV, "WORKER_KEY", WORKER_KEY)
    fleet = FleetThread(FleetSettings(profile="toy", models=("toy",), kv_events=False))
    broken = stub([b"not http: " + PROMPT.encode() + b"\r\n\r\n"], model="broken")
    half = stub([b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\nx", "close"], model="half")
    with fleet:
        workers = "".join(
            f'  - {{url: "{url}", api_key: "${{WORKER_KEY}}"}}\n'
            for url in (*fleet.urls, broken.url, half.url, dead_url)
        )
        text = f"workers:\n{workers}logs: {{level: debug, format: json, requests: true}}\n"
        with served(tmp_path, text) as (url, log), httpx.Client(base_url=url, timeout=20) as http:
            until(lambda: http.get("/health/live").is_success)
            statuses = set()
            for path in ("/v1/chat/completions", "/v1/completions", "/nowhere", "/v1/embeddings"):
                for model in ("toy", "broken", "half", "none", 7):
                    body = {
                        "model": model,
                        "messages": [{"role": "user", "content": PROMPT}],
                        "prompt": PROMPT,
                        "input": PROMPT,
                        "max_tokens": 2,
                        "cache_salt": SALT,
                    }
                    headers = {"authorization": f"Bearer {CLIENT_KEY}", "x-api-key": CLIENT_KEY}
                    for content in (json.dumps(body), json.dumps(body)[:-1], PROMPT):
                        try:
                            reply = http.post(path, content=content, headers=headers)
                            statuses.add(reply.status_code)
                        except httpx.RemoteProtocolError:
                            statuses.add(0)
            files = {"file": (PROMPT, PROMPT.encode())}
            for data in ({"model": "toy", "prompt": PROMPT}, {"model": "none"}):
                http.post("/v1/audio/transcriptions", data=data, files=files, headers=headers)
            http.post("/v1/audio/transcriptions", content=PROMPT, headers=headers)
            http.get("/metrics")
        text = log.read_text()
    assert {0, 200, 400, 404, 502} <= statuses
    for secret in (PROMPT, CLIENT_KEY, WORKER_KEY, SALT):
        assert secret not in text
    assert "Traceback" not in text
    assert text.count("path=/v1/chat/completions status=200") == 2
    lines = [json.loads(line) for line in text.splitlines()]
    assert all({"time", "level", "message"} <= set(line) for line in lines)


def test_requests_in_lines_for_machines(
    stub: MakeStub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a line for people says of a request is also in keys of its own, numbers as numbers."""
    monkeypatch.setitem(ENV, "CHAT_KEY", CLIENT_KEY)
    half = stub([b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\nx", "close"], model="half")
    workers = f"workers: [{{url: {stub(model='m').url}, name: gpu-1}}, {half.url}]\n"
    auth = "auth: {keys: [{name: chat, key: '${CHAT_KEY}'}]}\n"
    more = "strategy: roundrobin\nlogs: {format: json, requests: true}\n"
    with served(tmp_path, workers + auth + more) as (url, log):
        headers = {"authorization": f"Bearer {CLIENT_KEY}", "x-request-id": "one"}
        with httpx.Client(base_url=url, headers=headers, timeout=20) as http:
            for model in ("m", "half"):
                body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
                until(lambda: http.get(f"/v1/models/{model}").is_success)  # noqa: B023
                with suppress(httpx.RemoteProtocolError):
                    http.post("/v1/chat/completions", json=body)
            http.get("/nowhere")
        until(lambda: log.read_text().count("path=/v1/chat/completions") == 2)
        lines = [json.loads(line) for line in log.read_text().splitlines() if line[0] == "{"]
    asked = {"path": "/v1/chat/completions", "key": "chat"}
    good, cut = (line for line in lines if line.items() >= asked.items())
    assert (good["id"], good["status"], good["worker"]) == ("one", 200, "gpu-1")
    assert good["decision"] in good["message"]
    assert good["tokens"] == int(good["message"].partition("tokens=")[2].split()[0])
    assert 0 <= good["seconds"] == float(good["message"].partition("seconds=")[2])
    assert not {"failure", "preempted", "reason"} & good.keys()
    assert (cut["status"], cut["worker"]) == (200, half.url[7:])
    assert cut["message"].endswith(f" failure={cut['failure']}")
    (refused,) = (line for line in lines if line.get("path") == "/nowhere")
    assert (refused["id"], refused["key"], refused["status"]) == ("one", "chat", 404)
    assert repr(refused["reason"]) in refused["message"]


@pytest.fixture
def pipe() -> Iterator[tuple[int, TextIO]]:
    """Both ends of a pipe."""
    reader, writer = os.pipe()
    with os.fdopen(writer, "w", encoding="utf-8") as stream:
        yield reader, stream
    os.close(reader)


def say(handler: NonBlockingHandler, *lines: str) -> None:
    """Log these lines; fail if that does not end."""

    def speak() -> None:
        for line in lines:
            handler.emit(logging.LogRecord("n", logging.INFO, "f", 0, line, None, None))

    speaking = threading.Thread(target=speak, daemon=True)
    speaking.start()
    speaking.join(20)
    assert not speaking.is_alive()


@pytest.mark.parametrize("length", [50, MAX_WRITE_CHARS * 7])
def test_a_full_pipe(pipe: tuple[int, TextIO], length: int) -> None:
    """Lines that it does not take are dropped and counted, and the next ones are written."""
    reader, stream = pipe
    handler = NonBlockingHandler(stream)
    lines = [f"{number} {'ü' * length}" for number in range(200_000 // length)]
    say(handler, *lines)
    data = os.read(reader, 1 << 20)
    say(handler, "again", "and again")
    data += os.read(reader, 1 << 20)
    *whole, count, again, then = data.decode().splitlines()
    written = sum(line in lines for line in whole)
    assert written >= 3
    assert count == f"{len(lines) - written} lines are missing here: nobody read the log"
    assert (again, then) == ("again", "and again")


def test_a_stream_that_is_no_file() -> None:
    """It gets all lines."""
    stream = io.StringIO()
    say(NonBlockingHandler(stream), "one", "two " * MAX_WRITE_CHARS)
    assert stream.getvalue() == "one\n" + "two " * MAX_WRITE_CHARS + "\n"
