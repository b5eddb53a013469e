"""A worker and a door in front of it that many small requests share."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

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
