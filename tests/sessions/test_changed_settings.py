"""Sessions live through a change of settings, and follow the new ones."""

import asyncio

import pytest

from router.settings.model import Settings
from tests.reload.changing import change
from tests.sessions.asking import Later, ask
from tests.support import OK, MakeRouter, MakeStub, until


@pytest.mark.parametrize(
    "strategy", ["leastload", {"name": "session", "over": "leastload", "spill": "1ms"}]
)
def test_it_waits_no_longer_if_the_settings_let_it_go(
    stub: MakeStub, route: MakeRouter, strategy: object
) -> None:
    """After a reload with another strategy, an idle worker answers what waited for a busy one."""
    done: list[int] = []
    workers = {f"w{n}": stub() for n in range(2)}
    listed = [{"name": name, "url": worker.url} for name, worker in workers.items()]
    limits = {"in_flight": 1}
    router = route(*listed, strategy="session", limits=limits)
    home = ask(router, "a").headers["x-warmroute-worker"]
    workers[home].script = [lambda: bool(done), *OK]
    first = Later(router, "a")
    until(lambda: len(workers[home].requests) == 2)
    second = Later(router, "a")
    until(lambda: router.metric("warmroute_queue_length") == 1)
    change(router, *listed, strategy=strategy, limits=limits)
    assert second.worker() != home
    done.append(1)
    assert first.worker() == home


def test_sessions_live_through_a_change_of_settings(stub: MakeStub, route: MakeRouter) -> None:
    """Sessions keep their workers, even if the strategy's options change."""
    listed = [stub().url for _ in range(3)]
    router = route(*listed, strategy="session")
    before = {key: ask(router, key).headers["x-warmroute-worker"] for key in "abcdef"}
    loop = router.server.loop
    assert loop is not None
    for strategy in ({"name": "session", "spill": "9s"}, {"name": "session", "over": "leastload"}):
        told = {"workers": listed, "strategy": strategy, "session": {"ttl": "1h"}}
        changing = router.door.change(Settings.model_validate(told))
        asyncio.run_coroutine_threadsafe(changing, loop).result(20)
        replies = {key: ask(router, key) for key in before}
        now = {key: reply.headers["x-warmroute-worker"] for key, reply in replies.items()}
        assert now == before
