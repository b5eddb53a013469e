"""What `/openapi.json` promises, compared with the responses to requests generated from it."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode, checks

from router.api.endpoints import ENDPOINTS
from router.api.error_shapes import Surface, surface_of
from tests.sdk.conftest import MODEL
from tests.sdk.documents import document
from tests.support import Action, MakeRouter, MakeStub, Router, Stub, error_of

NAMED = "/v1/models/{name}"
READ = [
    *("/health/live", "/health/ready", "/kv", "/metrics", "/sessions", "/tokenizers"),
    *("/v1/models", "/workers", NAMED),
]
RELAYED = sorted(ENDPOINTS)
RESPONSE = "/v1/responses/{response_id}"
RESPONSES = [
    ("GET", RESPONSE),
    ("DELETE", RESPONSE),
    ("POST", f"{RESPONSE}/cancel"),
    ("GET", f"{RESPONSE}/input_items"),
]
#: Every response must be in the schema, with the content and headers described there.
CHECKS = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]


class Api(NamedTuple):
    """A running router, and the schema that it publishes."""

    router: Router
    schema: Any

    def validated(self, case: Case[Any]) -> Any:
        """Send a request; the response must match the schema."""
        return case.call_and_validate(base_url=self.router.url, checks=CHECKS)


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    """A router in front of a worker that accepts everything, so every refusal is the router's."""
    with ExitStack() as stack:
        worker = Stub(model=MODEL)
        stack.callback(worker.stop)
        router = Router({"workers": [worker.url], "limits": {"body": "64KiB"}})
        stack.callback(router.stop)
        yield Api(router, schemathesis.openapi.from_url(f"{router.url}/openapi.json"))


quickly = settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
#: Paths whose described requests are tried in every run, of those that take long together.
ALWAYS = {NAMED, "/workers", "/v1/chat/completions", "/v1/messages", "/v1/audio/transcriptions"}


def sampled(paths: list[str]) -> list[Any]:
    """Return paths as parameters, most of them for long runs."""
    return [p if p in ALWAYS else pytest.param(p, marks=pytest.mark.long) for p in paths]


def test_every_path_is_described(api: Api) -> None:
    """The schema is a valid OpenAPI document with exactly these operations."""
    described = {result.ok().label for result in api.schema.get_all_operations()}
    others = {f"POST {path}" for path in RELAYED} | {"DELETE /sessions/{session}", "POST /explain"}
    others |= {f"{method} {path}" for method, path in RESPONSES}
    assert described == {f"GET {path}" for path in READ} | others
    api.schema.validate()


@pytest.mark.parametrize("path", sampled(READ))
def test_what_is_read(api: Api, path: str) -> None:
    """With arbitrary query, headers and cookies."""
    operation = api.schema[path]["GET"]

    @quickly
    @given(operation.as_strategy(), st.dictionaries(st.text(max_size=5), st.text(max_size=5)))
    def asked(case: Case[Any], query: dict[str, str]) -> None:
        case.query = query
        assert api.validated(case).status_code == 200 or path == NAMED

    asked()


@pytest.mark.parametrize("path", sampled(RELAYED))
def test_what_is_relayed(api: Api, path: str) -> None:
    """With bodies that match the schema and others, with and without a model that is served."""
    operation = api.schema[path]["POST"]
    modes = [operation.as_strategy(generation_mode=mode) for mode in GenerationMode]

    @quickly
    @given(st.one_of(modes), st.booleans())
    def asked(case: Case[Any], served: bool) -> None:
        if served and isinstance(case.body, dict):
            case.body = {**case.body, "model": MODEL}
        answer = api.validated(case)
        if "x-warmroute-worker" not in answer.headers:
            assert answer.status_code in (400, 404, 413)

    asked()


@pytest.mark.parametrize(("method", "path"), RESPONSES[:1])
def test_what_is_asked_of_a_response(api: Api, method: str, path: str) -> None:
    """With any id of the described form, the only worker is asked."""
    operation = api.schema[path][method]

    @quickly
    @given(operation.as_strategy())
    def asked(case: Case[Any]) -> None:
        assert "x-warmroute-worker" in api.validated(case).headers

    asked()


#: vLLM's own error; its codes are numbers.
FULL = {"message": "too many", "type": "Service Unavailable", "param": None, "code": 503}
FAILURES: list[tuple[list[Action], int]] = [
    (["close"], 502),
    (document({"error": FULL}, 503), 503),
    (["stall"], 504),
]


@pytest.mark.parametrize(("script", "status"), FAILURES)
def test_failures(
    api: Api, stub: MakeStub, route: MakeRouter, script: list[Action], status: int
) -> None:
    """A worker that dies, is full, or does not answer: these responses are described too."""
    patience = "300ms" if status == 504 else "30s"
    router = route(stub(script, MODEL).url, timeouts={"first_byte": patience}, limits={"queue": 0})
    case = api.schema["/v1/completions"]["POST"].Case(
        body={"model": MODEL}, media_type="application/json"
    )
    answer = case.call_and_validate(base_url=router.url, checks=CHECKS[1:])
    assert answer.status_code == status


def test_nobody_there(api: Api, route: MakeRouter, dead_url: str) -> None:
    """The 503s when no worker is ready are described."""
    router = route(dead_url)
    for path, method in (("/v1/completions", "POST"), ("/health/ready", "GET")):
        case = api.schema[path][method].Case(body={}, media_type="application/json")
        answer = case.call_and_validate(base_url=router.url, checks=CHECKS[1:])
        assert answer.status_code == 503


@pytest.mark.parametrize(("paths", "offered"), [(READ, "GET"), (RELAYED, "POST")])
def test_other_methods(api: Api, paths: list[str], offered: str) -> None:
    """Each is refused with 405, an error of the router's, and the methods that are allowed."""
    for path in paths:
        for method in {"GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"} - {offered}:
            answer = api.router.http.request(method, path)
            assert answer.status_code == 405
            allowed = answer.headers["allow"].split(", ")
            assert offered in allowed
            assert method not in allowed
            assert f"{method} is not allowed here" in answer.text
            if surface_of(path) in (Surface.OPENAI, Surface.ANTHROPIC):
                assert error_of(answer)["type"] == "invalid_request_error"
