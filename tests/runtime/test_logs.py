"""Log lines, plain or JSON, which never contain prompts or keys."""

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from router.runtime import logs
from simulator.fleet import FleetThread
from simulator.settings import FleetSettings
from tests.support import MakeStub, until

WARMROUTE = Path(sys.executable).with_name("warmroute")
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
    said = capsys.readouterr()
    assert said.out == ""
    (line,) = said.err.splitlines()
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
def served(tmp_path: Path, text: str) -> Iterator[tuple[str, Path]]:
    """Run the real command with these settings; yield its URL and the path of its log."""
    config = tmp_path / "warmroute.yaml"
    config.write_text(f"listen: 127.0.0.1:0\n{text}")
    log = tmp_path / "stderr"
    with ExitStack() as stack:
        err = stack.enter_context(log.open("wb"))
        process = subprocess.Popen(
            [WARMROUTE, "serve", "--config", config],
            stderr=err,
            env={**os.environ, "WORKER_KEY": WORKER_KEY},
        )
        stack.callback(process.wait, 20)
        stack.callback(process.terminate)
        until(lambda: "listens on http" in log.read_text(), 20)
        found = re.search(r"listens on ([^\s\"]+)", log.read_text())
        assert found
        yield found[1], log


@pytest.mark.parametrize("form", ["json", "plain"])
def test_no_word_of_a_prompt_or_a_key(
    tmp_path: Path, stub: MakeStub, dead_url: str, form: str
) -> None:
    """At debug level, and while requests fail, the log has no prompt, key or cache salt."""
    fleet = FleetThread(FleetSettings(profile="toy", models=("toy",), kv_events=False))
    broken = stub([b"not http: " + PROMPT.encode() + b"\r\n\r\n"], model="broken")
    half = stub([b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\nx", "close"], model="half")
    with fleet:
        workers = "".join(
            f'  - {{url: "{url}", api_key: "${{WORKER_KEY}}"}}\n'
            for url in (*fleet.urls, broken.url, half.url, dead_url)
        )
        text = f"workers:\n{workers}logs: {{level: debug, format: {form}, requests: true}}\n"
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
        said = log.read_text()
    assert {0, 200, 400, 404, 502} <= statuses
    for secret in (PROMPT, CLIENT_KEY, WORKER_KEY, SALT):
        assert secret not in said
    assert "Traceback" not in said
    assert said.count("path=/v1/chat/completions status=200") == 2
    if form == "json":
        lines = [json.loads(line) for line in said.splitlines()]
        assert all({"time", "level", "message"} <= set(line) for line in lines)


def test_requests_in_lines_for_machines(
    stub: MakeStub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a line for people says of a request is also in keys of its own, numbers as numbers."""
    monkeypatch.setenv("CHAT_KEY", CLIENT_KEY)
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
