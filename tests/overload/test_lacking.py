"""The router itself runs out of file descriptors or ports while its workers are busy."""

import errno
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from router.upstream.connection import UpstreamConnection
from router.upstream.pool import Upstream
from tests.support import OK, MakeRouter, MakeStub, until

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
PATH = "/v1/chat/completions"


async def lacking(self: Upstream, addresses: Sequence[str]) -> UpstreamConnection:
    """Fail as the system does at the limit, without a moment's wait."""
    raise OSError(errno.EMFILE, "Too many open files")


def test_a_request_is_refused_if_one_worker_is_full_and_the_other_cannot_be_dialled(
    stub: MakeStub, route: MakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not decided again and again: the router goes on to serve others."""
    opened = threading.Event()
    busy, idle = stub([opened.is_set, *OK]), stub()
    router = route(
        *(worker.url for worker in (busy, idle)),
        limits={"in_flight": 1},
        health={"interval": "30s"},
        strategy="roundrobin",
    )
    with ThreadPoolExecutor(1) as other:
        first = other.submit(router.http.post, PATH, json=CHAT)
        until(lambda: len(busy.requests) == 1)
        try:
            with monkeypatch.context() as patch:
                patch.setattr(Upstream, "_connect", lacking)
                assert router.http.post(PATH, json=CHAT).status_code == 503
                assert router.http.get("/health/live").status_code == 200
        finally:
            opened.set()
        assert first.result().status_code == 200
    assert router.http.post(PATH, json=CHAT).status_code == 200
