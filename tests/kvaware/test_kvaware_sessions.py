"""Sessions over `kvaware`."""

import uuid

from tests.kvaware.conftest import MakeFleet, MakeKvAware
from tests.kvaware.test_kvaware_live import CHAT, cached, chat, predicted, settle
from tests.support import until


def test_a_lost_session_goes_where_most_of_it_is(fleet: MakeFleet, kvaware: MakeKvAware) -> None:
    """KV events give the prediction while a session stays, and the new worker when it must move."""
    made = fleet(workers=3)
    strategy = {"name": "session", "over": "kvaware"}
    router = kvaware(*made.urls, strategy=strategy)
    text = f"{uuid.uuid4()} " + "All the king's horses. " * 120

    def turn(session: str, *, level: bool = True) -> tuple[str, str, int, int]:
        answer = router.http.post(CHAT, json=chat(text), headers={"x-session-id": session})
        until(router.idle)
        if level:
            settle(router, made)
        word = answer.headers["x-warmroute-session"].partition(";")[0]
        return answer.headers["x-warmroute-worker"], word, predicted(answer), cached(answer)

    home, word, _, _ = turn("a")
    assert word == "new"
    again = turn("a")
    assert again[:2] == (home, "kept")
    assert again[2] == again[3] > 0
    pool = router.door.fleet.pools[0]
    worker = next(one for one in pool.workers if one.name == home)
    worker.draining = True
    router.call(lambda: pool.change(pool.models, pool.workers))
    other = turn("b")[0]
    assert other != home
    worker.draining = False
    router.call(lambda: pool.change(pool.models, pool.workers))
    made.run(next(one for one in made.workers if one.url == worker.url).stop())
    until(lambda: not worker.ready)
    moved = turn("a", level=False)
    assert moved[:2] == (other, "rebound")
    assert moved[2] == moved[3] > 0
