"""Fixtures for the HTTP tests: a shared worker and router, and certificate authorities."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.authority import Authority
from tests.support import Router, Stub, until


@pytest.fixture(scope="module")
def worker() -> Iterator[Stub]:
    """A healthy worker that answers every request with 200, shared by a module's tests."""
    with ExitStack() as stack:
        made = Stub()
        stack.callback(made.stop)
        yield made


@pytest.fixture(scope="module")
def door(worker: Stub) -> Iterator[Router]:
    """A router in front of that worker, with a limit of 64 KiB on bodies."""
    with ExitStack() as stack:
        made = Router({"workers": [worker.url], "limits": {"body": "64KiB"}})
        stack.callback(made.stop)
        yield made


@pytest.fixture
def still_open(worker: Stub, door: Router) -> Iterator[None]:
    """Check after the test that nothing is booked and the next request is served."""
    yield
    until(door.idle)
    body = {"model": "m", "messages": []}
    assert door.http.post("/v1/chat/completions", json=body).status_code == 200
    assert door.worker().ready
    worker.requests.clear()


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    """The CA that the test trusts."""
    return Authority(tmp_path / "ours")


@pytest.fixture
def theirs(tmp_path: Path) -> Authority:
    """Another CA, which the test does not trust."""
    return Authority(tmp_path / "theirs")
