"""docs/api.md lists every path, error and header of ours, and no others."""

import re
from collections.abc import Iterator
from pathlib import Path

from router.api.endpoints import ENDPOINTS, PROBES, Engines
from router.api.errors import DoorError
from router.sagemaker.sessions import WorkerRefusal
from router.sagemaker.sigv4 import Unsigned
from tests.support import MakeRouter, MakeStub

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "api.md").read_text("utf-8")
PATH = re.compile(r"`(?:[A-Z]+ )?(/[^`]*)`")
ERROR = re.compile(r"^\| ([\d, ]+) \| (?:`(\w+)`|none) \|", re.MULTILINE)
HEADER = re.compile(r"x-warmroute-[a-z]+")


def errors(kind: type[DoorError]) -> Iterator[tuple[int, str | None]]:
    """Yield status and code of an error and of all kinds of it, but not of what a worker said."""
    if kind is not WorkerRefusal:
        yield kind.status, kind.code
    for one in kind.__subclasses__():
        yield from errors(one)


def test_every_path_is_in_the_page(stub: MakeStub, route: MakeRouter) -> None:
    """Those of OpenAPI, its own, and the other names of the health check."""
    paths = route(stub().url).http.get("/openapi.json").json()["paths"]
    served = {
        re.sub("{(session|response_id)}", "ID", path).replace("{name}", "NAME") for path in paths
    }
    rows = [line for line in PAGE.splitlines() if re.match(r"\| `(?:[A-Z]+ )?/", line)]
    listed = {path for row in rows for cell in row.split("|")[1:2] for path in PATH.findall(cell)}
    answered = {"/v1/models", "/v1/models/NAME"}
    assert answered <= set(PATH.findall(PAGE))
    assert listed | answered == served | PROBES | {"/openapi.json", "/docs"}


def test_the_page_tells_which_engine_has_which_path() -> None:
    """Each inference path is in one row, with what the table in the code says of it."""
    has = {"yes": True, "no": False}
    rows = re.findall(r"^\| (`/[^|]*) \| (yes|no) \| (yes|no) \|", PAGE, re.MULTILINE)
    told = [
        (path, has[vllm], has[sglang])
        for paths, vllm, sglang in rows
        for path in PATH.findall(paths)
    ]
    assert sorted(told) == sorted(
        (path, Engines.VLLM in one.engines, Engines.SGLANG in one.engines)
        for path, one in ENDPOINTS.items()
    )


def test_every_error_is_in_the_page() -> None:
    """Each status and code of the router's own is a row, and nothing else is."""
    rows = {(int(status), row[2]) for row in ERROR.finditer(PAGE) for status in row[1].split(", ")}
    assert Unsigned in DoorError.__subclasses__()
    assert rows == set(errors(DoorError))


def test_every_header_of_ours_is_in_the_page() -> None:
    """The names in the code and in the page are the same."""
    code = "".join(path.read_text("utf-8") for path in (ROOT / "router").rglob("*.py"))
    assert set(HEADER.findall(PAGE)) == set(HEADER.findall(code))
