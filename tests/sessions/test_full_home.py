"""A session whose worker is full: it moves, or stays, as the settings say."""

import uuid

import pytest

from tests.sessions.asking import Later, ask
from tests.support import OK, Action, MakeRouter, MakeStub, Router, until

FULL: list[Action] = [b"HTTP/1.1 503 Full\r\ncontent-length: 2\r\n\r\n{}"]


def decisions(router: Router) -> dict[str, float]:
    """Return the number of decisions, by reason."""
    name, words = "warmroute_decisions_total", ("bind", "session", "spill", "rebind")
    found = {word: router.metric(name, pool="default", reason=word) for word in words}
    return {word: count for word, count in found.items() if count}


def test_one_that_may_moves_instead(stub: MakeStub, route: MakeRouter) -> None:
    """The move is announced in the header and counted in the metrics."""
    done: list[int] = []
    workers = {f"w{n}": stub() for n in range(2)}
    listed = [{"name": name, "url": worker.url} for name, worker in workers.items()]
    strategy = {"name": "session", "over": "leastload", "spill": "1ms"}
    router = route(*listed, strategy=strategy, limits={"in_flight": 1})
    home = ask(router, "a").headers["x-warmroute-worker"]
    workers[home].script = [lambda: bool(done), *OK]
    first = Later(router, "a")
    until(lambda: len(workers[home].requests) == 2)
    second = ask(router, "a")
    done.append(1)
    assert second.headers["x-warmroute-worker"] != home
    assert second.headers["x-warmroute-session"].startswith("spilled;")
    assert second.headers["x-warmroute-decision"].startswith("spill;")
    assert first.worker() == home
    assert router.metric("warmroute_session_events_total", pool="default", event="spilled") == 1
    third = ask(router, "a")
    assert third.headers["x-warmroute-worker"] == second.headers["x-warmroute-worker"]
    assert third.headers["x-warmroute-session"].startswith("kept;")


def test_a_full_worker_s_session_is_told_so(stub: MakeStub, route: MakeRouter) -> None:
    """It gets the 503 instead of another worker; the next request finds its worker again."""
    workers = {f"w{n}": stub() for n in range(2)}
    listed = [{"name": name, "url": worker.url} for name, worker in workers.items()]
    router = route(*listed, strategy="session")
    home = ask(router, "a").headers["x-warmroute-worker"]
    workers[home].script = FULL
    refused = ask(router, "a")
    assert (refused.status_code, refused.headers["x-warmroute-worker"]) == (503, home)
    workers[home].script = OK
    again = ask(router, "a")
    assert again.headers["x-warmroute-worker"] == home
    assert again.headers["x-warmroute-session"].startswith("kept;")


def test_a_full_worker_s_session_moves_if_it_may(stub: MakeStub, route: MakeRouter) -> None:
    """It moves however long `spill` is; header, decision and metric agree."""
    workers = {f"w{n}": stub() for n in range(2)}
    listed = [{"name": name, "url": worker.url} for name, worker in workers.items()]
    strategy = {"name": "session", "over": "leastload", "spill": "1h"}
    router = route(*listed, strategy=strategy)
    home = ask(router, "a").headers["x-warmroute-worker"]
    workers[home].script = FULL
    moved = ask(router, "a")
    assert moved.headers["x-warmroute-worker"] != home
    assert moved.headers["x-warmroute-session"].startswith("spilled;")
    assert moved.headers["x-warmroute-decision"].partition(";")[0] == "spill"
    assert router.metric("warmroute_session_events_total", pool="default", event="spilled") == 1
    assert decisions(router) == {"bind": 1, "spill": 1}


@pytest.mark.parametrize("last", [FULL, None], ids=["both full", "the other one dead"])
@pytest.mark.parametrize("shared", [False, True], ids=["in memory", "in Redis"])
def test_a_session_stays_if_nobody_takes_its_request(
    stub: MakeStub,
    route: MakeRouter,
    request: pytest.FixtureRequest,
    last: list[Action] | None,
    shared: bool,
) -> None:
    """It was only tried elsewhere; header, decision, metric and list agree that it stayed."""
    workers = {f"w{n}": stub() for n in range(2)}
    listed = [{"name": name, "url": worker.url} for name, worker in workers.items()]
    strategy = {"name": "session", "over": "leastload", "spill": "1h"}
    redis = request.getfixturevalue("redis").url if shared else ""
    rules = {"redis": {"url": redis, "timeout": "5s"}} if shared else {}
    session = f"a-{uuid.uuid4().hex}"
    router = route(*listed, strategy=strategy, session=rules)
    home = ask(router, session).headers["x-warmroute-worker"]
    other = "w1" if home == "w0" else "w0"
    workers[home].script = FULL
    if last is None:
        workers[other].stop()
    else:
        workers[other].script = last
    refused = ask(router, session)
    assert refused.status_code == 503
    if last is not None:
        assert refused.headers["x-warmroute-worker"] == other
        assert refused.headers["x-warmroute-session"].startswith("kept;")
        assert refused.headers["x-warmroute-decision"].partition(";")[0] == "session"
    open_now = {one["id"]: one["worker"] for one in router.http.get("/sessions").json()}
    assert open_now[session] == home
    assert router.metric("warmroute_session_events_total", pool="default", event="spilled") == 0
    assert decisions(router) == {"bind": 1, "session": 1}
    workers[home].script = OK
    again = ask(router, session)
    assert again.headers["x-warmroute-worker"] == home
    assert again.headers["x-warmroute-session"].startswith("kept;")


def test_a_session_is_where_its_request_may_have_begun(stub: MakeStub, route: MakeRouter) -> None:
    """If the worker that took it dies before it answers, it has moved, and that is counted."""
    workers = {f"w{n}": stub() for n in range(2)}
    listed = [{"name": name, "url": worker.url} for name, worker in workers.items()]
    strategy = {"name": "session", "over": "leastload", "spill": "1h"}
    router = route(*listed, strategy=strategy)
    home = ask(router, "a").headers["x-warmroute-worker"]
    other = "w1" if home == "w0" else "w0"
    workers[home].script = FULL
    workers[other].script = [0.3, "close"]
    assert ask(router, "a").status_code == 502
    assert [one["worker"] for one in router.http.get("/sessions").json()] == [other]
    assert router.metric("warmroute_session_events_total", pool="default", event="spilled") == 1
    assert decisions(router) == {"bind": 1, "spill": 1}
    workers[other].script = OK
    again = ask(router, "a")
    assert again.headers["x-warmroute-worker"] == other
    assert again.headers["x-warmroute-session"].startswith("kept;")
