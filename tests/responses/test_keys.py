"""Each key has its own responses."""

from typing import Any

import pytest

from tests.responses.asking import PATH, bearer, follow, get, made, owner
from tests.responses.conftest import MakeEngines
from tests.support import MakeRouter

A, B = "a" * 20, "b" * 20
KEYS: dict[str, Any] = {
    "auth": {"keys": [{"name": "a", "key": "${KEY_A}"}, {"name": "b", "key": "${KEY_B}"}]}
}


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put both keys into the environment."""
    monkeypatch.setenv("KEY_A", A)
    monkeypatch.setenv("KEY_B", B)


def test_each_key_has_its_own_responses(engines: MakeEngines, route: MakeRouter) -> None:
    """Another key's do not exist, to fetch, to cancel, to delete or to go on from."""
    workers = engines(2)
    router = route(*(one.url for one in workers), **KEYS)
    name = made(router, key=A, background=True)
    asked = sum(len(one.seen) for one in workers)
    replies = [
        get(router, name, B),
        follow(router, name, B),
        router.http.post(f"{PATH}/{name}/cancel", headers=bearer(B)),
        router.http.delete(f"{PATH}/{name}", headers=bearer(B)),
    ]
    assert [reply.status_code for reply in replies] == [404] * 4
    assert get(router, name).status_code == 401
    assert sum(len(one.seen) for one in workers) == asked
    assert get(router, name, A).status_code == 200
    assert follow(router, name, A).status_code == 200
    assert "authorization" not in owner(workers, name).seen[-1].headers


def test_among_several_keys_no_worker_is_asked_for_what_is_not_known(
    engines: MakeEngines, route: MakeRouter
) -> None:
    """It could be another key's: even the only worker is not asked."""
    [worker] = engines(1)
    name = made(route(worker.url, **KEYS), key=A)
    other = route(worker.url, **KEYS)
    assert get(other, name, B).status_code == 404
    assert follow(other, name, B).status_code == 404
    assert len(worker.seen) == 1


def test_an_id_that_another_key_chose_again_stays_where_it_is(
    engines: MakeEngines, route: MakeRouter
) -> None:
    """vLLM lets clients choose ids (`request_id`): nobody takes away another key's response."""
    workers = engines(2)
    router = route(*(one.url for one in workers), strategy="roundrobin", **KEYS)
    made(router, key=A, request_id="resp_mine")
    home = owner(workers, "resp_mine")
    made(router, key=B, request_id="resp_mine")
    assert get(router, "resp_mine", A).status_code == 200
    assert home.seen[-1].method == "GET"
    assert get(router, "resp_mine", B).status_code == 404


def test_a_single_key_goes_on_after_a_restart_of_the_router(
    engines: MakeEngines, route: MakeRouter
) -> None:
    """There is nobody else whose the response could be."""
    [worker] = engines(1)
    alone = {"auth": {"keys": [{"name": "a", "key": "${KEY_A}"}]}}
    name = made(route(worker.url, **alone), key=A)
    other = route(worker.url, **alone)
    assert get(other, name, A).status_code == 200
    assert follow(other, name, A).status_code == 200
