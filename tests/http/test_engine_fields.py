"""What engines and their routers tell each other is not taken from clients that nobody trusts."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support import MakeRouter, MakeStub, Stub, error_of

KEYS = {"team": "sk-team-0123456789", "proxy": "sk-proxy-0123456789"}
PULL = {"do_remote_prefill": True, "remote_host": "10.9.9.9", "remote_port": 5600}
HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
#: A field and its value, and the name that the error tells.
FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"kv_transfer_params": PULL}, "kv_transfer_params"),
    ({"kv_transfer_params": {}}, "kv_transfer_params"),
    ({"ec_transfer_params": {"peer": "10.9.9.9:1"}}, "ec_transfer_params"),
    ({"vllm_xargs": {"kv_transfer_params": "x"}}, "vllm_xargs.kv_transfer_params"),
    (
        {"sampling_params": {"extra_args": {"kv_transfer_params": PULL}}},
        "sampling_params.extra_args.kv_transfer_params",
    ),
    ({"bootstrap_host": ["10.9.9.9"]}, "bootstrap_host"),
    ({"bootstrap_port": 8998}, "bootstrap_port"),
    ({"bootstrap_room": 0}, "bootstrap_room"),
    ({"bootstrap_pair_key": "a"}, "bootstrap_pair_key"),
    ({"data_parallel_rank": 0}, "data_parallel_rank"),
    ({"routed_dp_rank": 1}, "routed_dp_rank"),
    ({"disagg_prefill_dp_rank": 1}, "disagg_prefill_dp_rank"),
    ({"http_worker_ipc": "ipc:///run/other"}, "http_worker_ipc"),
    ({"mm_hashes": ["a"]}, "mm_hashes"),
    ({"request_id": "a___decode_addr_10.9.9.9:5600"}, "request_id"),
]
HEADERS = {
    "x-data-parallel-rank": "3",
    "X-Prefiller-Host-Port": "10.9.9.9:8000",
    "x-worker-instance-id": "7",
    "x-gateway-destination-endpoint": "10.9.9.9:8000",
}


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the environment variables that the settings name."""
    for name, key in KEYS.items():
        monkeypatch.setenv(f"{name.upper()}_KEY", key)


def keyed(worker: Stub) -> dict[str, Any]:
    """Settings with two keys, of which one is trusted."""
    keys = [
        {"name": "team", "key": "${TEAM_KEY}"},
        {"name": "proxy", "key": "${PROXY_KEY}", "engine_fields": True},
    ]
    return {"workers": [worker.url], "auth": {"keys": keys}}


def bearer(name: str) -> dict[str, str]:
    """The header field with the key of that name."""
    return {"authorization": f"Bearer {KEYS[name]}"}


def heads(worker: Stub) -> Iterator[str]:
    """The heads of the requests that a worker got."""
    return (one.partition(b"\r\n\r\n")[0].decode().lower() for one in worker.requests)


def refused(reply: httpx.Response, field: str) -> None:
    """Check that an error names the field."""
    assert reply.status_code == 400
    assert error_of(reply)["param"] == field
    assert field in error_of(reply)["message"]


PATHS = (
    *("/v1/responses", "/v1/messages", "/v1/messages/count_tokens"),
    *("/inference/v1/generate", "/generate", "/v1/rerank"),
)


@pytest.mark.parametrize(
    ("path", "field", "name"),
    [("/v1/chat/completions", *one) for one in FIELDS] + [(path, *FIELDS[0]) for path in PATHS],
)
def test_fields_are_refused_by_name(
    stub: MakeStub, route: MakeRouter, path: str, field: dict[str, Any], name: str
) -> None:
    """The worker is not asked, and the client reads which field it was; a trusted key may."""
    worker = stub()
    router = route(**keyed(worker))
    body = {**HELLO, "input": "hello", "max_tokens": 5, **field}
    reply = router.http.post(path, json=body, headers=bearer("team"))
    assert reply.status_code == 400
    assert name in reply.text
    assert not worker.requests
    assert router.http.post(path, json=body, headers=bearer("proxy")).status_code == 200
    assert json.loads(worker.requests[-1].partition(b"\r\n\r\n")[2]) == body


@pytest.mark.parametrize(
    "body",
    [
        # The name is written with an escape; the field is given twice; its value is left out.
        rb'{"model":"m","prompt":"hi","kv\u005ftransfer_params":{"do_remote_prefill":true}}',
        b'{"model":"m","prompt":"hi","kv_transfer_params":null,"kv_transfer_params":{"a":1}}',
        b' {"kv_transfer_params" : "x" , "prompt":["hi","ho"],"model":"m"} ',
    ],
)
def test_however_a_field_is_written(stub: MakeStub, route: MakeRouter, body: bytes) -> None:
    """What counts is what a JSON parser reads."""
    worker = stub()
    router = route(worker.url)
    refused(router.http.post("/v1/completions", content=body), "kv_transfer_params")
    assert not worker.requests


def test_harmless_values_pass(stub: MakeStub, route: MakeRouter) -> None:
    """A null, other extra arguments, an ordinary id, and the same words in a prompt."""
    worker = stub()
    router = route(worker.url)
    body = {
        **HELLO,
        "messages": [{"role": "user", "content": 'say {"kv_transfer_params": {"a": 1}}'}],
        "kv_transfer_params": None,
        "vllm_xargs": {"top_k": 3, "kv_transfer_params": None},
        "sampling_params": [{"temperature": 0}],
        "request_id": "resp_0123-a.b",
        "metadata": {"bootstrap_host": "a"},
    }
    assert router.http.post("/v1/chat/completions", json=body).status_code == 200
    assert json.loads(worker.requests[0].partition(b"\r\n\r\n")[2]) == body


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kv_transfer_params", "{}"),
        ("vllm_xargs", '{"a": NaN, "b": "\\ud83d", "kv_transfer_params": "x"}'),
    ],
)
def test_fields_of_a_form(stub: MakeStub, route: MakeRouter, name: str, value: str) -> None:
    """vLLM reads extra arguments of a form as JSON."""
    worker = stub()
    router = route(worker.url)
    files = {"file": ("a.wav", b"R" * 100)}
    reply = router.http.post(
        "/v1/audio/transcriptions", data={"model": "m", name: value}, files=files
    )
    assert (reply.status_code, len(worker.requests)) == (400, 0)
    assert name in error_of(reply)["message"]


@pytest.mark.parametrize("charset", ["utf-7", '"UTF-16"', "no-such"])
def test_a_form_in_another_charset(stub: MakeStub, route: MakeRouter, charset: str) -> None:
    """Its reader would find other names of fields in it."""
    worker = stub()
    router = route(worker.url)
    part = b'--X\r\ncontent-disposition: form-data; name="%b"\r\n\r\n%b\r\n'
    body = part % (b"vllm+AF8-xargs", b'{"kv+AF8-transfer+AF8-params":"x"}') + b"--X--\r\n"
    for told, status in ((f"; charset={charset}", 400), ("; charset=UTF-8", 200), ("", 200)):
        fields = {"content-type": f"multipart/form-data; boundary=X{told}"}
        reply = router.http.post("/v1/audio/transcriptions", content=body, headers=fields)
        assert reply.status_code == status
    assert len(worker.requests) == 2


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/invocations"])
def test_header_fields_are_dropped(stub: MakeStub, route: MakeRouter, path: str) -> None:
    """They reach the worker only from a client that is trusted, also over the same connection."""
    worker = stub()
    router = route(**keyed(worker))
    for name in ("team", "proxy", "team"):
        headers = {**HEADERS, **bearer(name), "x-other": "kept"}
        assert router.http.post(path, json=HELLO, headers=headers).status_code == 200
    first, second, third = heads(worker)
    for name in HEADERS:
        assert f"\n{name.lower()}:" in second
        assert f"\n{name.lower()}:" not in first + third
    assert all("\nx-other: kept" in one for one in (first, second, third))


def test_workers_that_take_them_from_everyone(stub: MakeStub, route: MakeRouter) -> None:
    """All workers of the pool must: any of them may be chosen."""
    one, other = stub(), stub()
    body = {**HELLO, "data_parallel_rank": 1}
    some = route({"url": one.url, "engine_fields": True}, other.url)
    refused(some.http.post("/v1/chat/completions", json=body), "data_parallel_rank")
    every = route(*({"url": stub.url, "engine_fields": True} for stub in (one, other)))
    reply = every.http.post("/v1/chat/completions", json=body, headers=HEADERS)
    assert reply.status_code == 200
    (head,) = (*heads(one), *heads(other))
    assert "\nx-data-parallel-rank: 3" in head


def test_whatever_leads_to_a_worker_is_refused_alike(stub: MakeStub, route: MakeRouter) -> None:
    """SageMaker's path does; what would not be sent is not explained as if it were."""
    worker = stub()
    router = route(worker.url)
    body = {**HELLO, "bootstrap_room": 7}
    refused(router.http.post("/explain", json=body), "bootstrap_room")
    reply = router.http.post("/invocations", json=body)
    assert (reply.status_code, "bootstrap_room" in reply.text) == (400, True)
    assert not worker.requests
