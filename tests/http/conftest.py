"""What tests of the wire share: a worker and a door for many small requests, and authorities."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.authority import Authority
from tests.support import Router, Stub


@pytest.fixture(scope="module")
def worker() -> Iterator[Stub]:
    """A healthy worker that says yes to everything."""
    with ExitStack() as stack:
        made = Stub()
        stack.callback(made.stop)
        yield made


@pytest.fixture(scope="module")
def door(worker: Stub) -> Iterator[Router]:
    """A router in front of it, with a small limit on bodies."""
    with ExitStack() as stack:
        made = Router({"workers": [worker.url], "limits": {"body": "64KiB"}})
        stack.callback(made.stop)
        yield made


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    """The authority that everyone trusts."""
    return Authority(tmp_path / "ours")


@pytest.fixture
def theirs(tmp_path: Path) -> Authority:
    """Another one."""
    return Authority(tmp_path / "theirs")
