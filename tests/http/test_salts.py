"""Separate KV caches per key: what one key's clients have sent, another's never find."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from router.api.endpoints import ENDPOINTS, Salted
from router.api.request import Request
from router.prompt.salts import Salts, give
from router.settings.model import Settings
from simulator.fleet import FleetThread
from simulator.settings import FleetSettings
from tests.reload.changing import change
from tests.support import OK, MakeRouter, MakeStub, Router, Stub, error_of, until

CHAT = "/v1/chat/completions"
KEYS = {"a": "sk-team-a-0123456789", "b": "sk-team-b-0123456789", "ops": "sk-ops-0123456789"}
SALTED, UNSALTED, REFUSED = (
    [path for path, one in ENDPOINTS.items() if one.salted is how and not one.form]
    for how in (Salted.YES, Salted.NEEDLESS, Salted.CANNOT)
)


@pytest.fixture(scope="module", autouse=True)
def _secrets() -> Iterator[None]:
    """Set the environment variables that the settings name."""
    with pytest.MonkeyPatch.context() as patch:
        for name, key in KEYS.items():
            patch.setenv(f"{name.upper()}_KEY", key)
        yield


def settings(*urls: str, apart: bool = True) -> dict[str, Any]:
    """Settings with the keys of two teams and of an operator."""
    keys = [{"name": name, "key": f"${{{name.upper()}_KEY}}"} for name in ("a", "b")]
    return {
        "workers": list(urls),
        "auth": {"keys": keys, "separate_caches": apart},
        "admin": {"keys": [{"name": "ops", "key": "${OPS_KEY}"}]},
    }


def bearer(name: str) -> dict[str, str]:
    """The header field with the key of that name."""
    return {"authorization": f"Bearer {KEYS[name]}"}


def sent(worker: Stub) -> dict[str, Any]:
    """The decoded body of the last request that a worker got."""
    found: dict[str, Any] = json.loads(worker.requests[-1].partition(b"\r\n\r\n")[2])
    return found


def salts_of(worker: Stub) -> set[str]:
    """All cache salts that a worker got."""
    return {json.loads(one.partition(b"\r\n\r\n")[2])["cache_salt"] for one in worker.requests}


def ask(router: Router, name: str, path: str = CHAT, **body: Any) -> httpx.Response:
    """Send a request with the key of that name."""
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}], **body}
    return router.http.post(path, json=body, headers=bearer(name))


def test_each_key_has_a_salt(stub: MakeStub, route: MakeRouter) -> None:
    """Each key has its own, the same on every router; other fields that are checked stay."""
    worker = stub()
    found: dict[str, set[str]] = {"a": set(), "b": set()}
    for router in [route(**settings(worker.url)) for _ in range(2)]:
        for path in SALTED:
            for name, salts in found.items():
                reply = ask(router, name, path, extra={"cache_salt": "inner"})
                assert reply.status_code == 200, path
                body = sent(worker)
                salts.add(body.pop("cache_salt"))
                assert body["extra"] == {"cache_salt": "inner"}
                assert body["messages"] == [{"role": "user", "content": "hello"}]
    (first,), (second,) = found.values()
    assert first != second
    assert all(len(salt) == 32 and set(salt) <= set("0123456789abcdef") for salt in (first, second))


def test_a_client_cannot_choose_the_cache(stub: MakeStub, route: MakeRouter) -> None:
    """A client's own salt separates prompts within its key; it never reaches another's cache."""
    worker = stub()
    router = route(**settings(worker.url))
    found: dict[object, str] = {}
    for name in ("a", "b"):
        ask(router, name)
        found[name] = sent(worker)["cache_salt"]
    for name, own in (("a", "mine"), ("b", "mine"), ("b", found["a"])):
        ask(router, name, cache_salt=own)
        found[name, own] = sent(worker)["cache_salt"]
    assert len(set(found.values())) == len(found)
    twice = (
        b'{"model":"m","messages":[],"cache_salt":"x","cache_salt":"%b"} \n' % found["a"].encode()
    )
    router.http.post(CHAT, content=twice, headers=bearer("b"))
    assert sent(worker)["cache_salt"] == found["b", found["a"]]


def test_an_odd_salt_is_refused(stub: MakeStub, route: MakeRouter) -> None:
    """An invalid salt gets 400, as vLLM would refuse it too."""
    worker = stub()
    router = route(**settings(worker.url))
    odd: tuple[object, ...] = ("", 7, [], False)
    for own in odd:
        reply = ask(router, "a", cache_salt=own)
        assert (reply.status_code, error_of(reply)["param"]) == (400, "cache_salt")
    assert not worker.requests
    assert ask(router, "a", cache_salt=None).status_code == 200


@pytest.mark.parametrize("apart", [True, False])
def test_nothing_is_added_elsewhere(stub: MakeStub, route: MakeRouter, *, apart: bool) -> None:
    """No salt is added if the setting is off, to paths that compute nothing, or to forms."""
    worker = stub()
    router = route(**settings(worker.url, apart=apart))
    assert {"/tokenize", "/v1/messages/count_tokens", "/v1/messages/render"} <= set(UNSALTED)
    for path in UNSALTED if apart else (*SALTED, *REFUSED):
        assert ask(router, "a", path).status_code == 200
        assert "cache_salt" not in sent(worker)
    form: dict[str, Any] = {
        "data": {"model": "m"},
        "files": {"file": b"sound"},
        "headers": bearer("a"),
    }
    assert router.http.post("/v1/audio/transcriptions", **form).status_code == 200
    assert b"cache_salt" not in worker.requests[-1]


def test_paths_that_engines_cannot_keep_apart(stub: MakeStub, route: MakeRouter) -> None:
    """Where engines have no `cache_salt`, nothing is sent: other keys could find it."""
    worker = stub()
    router = route(**settings(worker.url))
    assert {"/v2/embed", "/api/chat", "/encode", "/cohere/v2/chat"} <= set(REFUSED)
    for path in REFUSED:
        reply = ask(router, "a", path)
        assert reply.status_code == 400
        assert "separate_caches" in reply.text
    assert worker.requests == []


def cached(reply: httpx.Response) -> int:
    """The cached tokens that the worker reported."""
    reply.raise_for_status()
    found: int = reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


def test_nobody_finds_what_others_sent(stack: ExitStack, route: MakeRouter) -> None:
    """No worker finds another key's prefix, and the router's decisions and `/explain` agree."""
    fleet = stack.enter_context(FleetThread(FleetSettings(workers=2, models=("m",), speed=50)))
    router = route(**settings(*fleet.urls))
    text: dict[str, Any] = {
        "messages": [{"role": "user", "content": "a long story " * 400}],
        "max_tokens": 2,
    }
    first = ask(router, "a", **text)
    home = first.headers["x-warmroute-worker"]
    assert cached(first) == 0
    until(router.idle)

    def explained(name: str) -> dict[str, Any]:
        reply = router.http.post(
            "/explain", params={"key": name}, json={"model": "m", **text}, headers=bearer("ops")
        ).raise_for_status()
        found: dict[str, Any] = reply.json()
        return found

    until(lambda: explained("a")["reason"] == "prefix")
    assert explained("a")["workers"][0]["worker"] == home
    assert explained("b")["reason"] == "cold"
    again = ask(router, "a", **text)
    assert again.headers["x-warmroute-worker"] == home
    assert cached(again) > 1000
    others = [cached(ask(router, "b", **text)) for _ in range(3)]  # it may go to either worker
    assert others[0] == 0
    assert max(others) > 1000


def test_whose_cache_is_meant_must_be_said(stub: MakeStub, route: MakeRouter) -> None:
    """With separate caches `/explain` needs the name of a key, and its error lists the names."""
    router = route(**settings(stub().url))
    body = {"model": "m", "messages": []}
    for params, words in (({}, "say whose"), ({"key": "c"}, "there are a, b")):
        reply = router.http.post("/explain", params=params, json=body, headers=bearer("ops"))
        assert (reply.status_code, error_of(reply)["param"]) == (400, "key")
        assert words in error_of(reply)["message"]
    shared = route(**settings(stub().url, apart=False))
    assert shared.http.post("/explain", json=body, headers=bearer("ops")).status_code == 200


def test_clients_are_told_of_their_own_cache_alone(stub: MakeStub, route: MakeRouter) -> None:
    """Clients whose keys open `/explain` may ask about their own cache only."""
    told = settings(stub().url)
    del told["admin"]
    router = route(**told)
    assert ask(router, "a").status_code == 200
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    for key, status in (("a", 400), ("c", 400), ("b", 200), ("", 200)):
        reply = router.http.post("/explain", params={"key": key}, json=body, headers=bearer("b"))
        assert reply.status_code == status
        if status == 400:
            assert error_of(reply)["param"] == "key"
            assert "admin.keys" in error_of(reply)["message"]


def test_names_that_move_meanwhile(stub: MakeStub, route: MakeRouter) -> None:
    """Unnamed keys are named by position: if one is removed, the next takes its name.

    It must not take the cache of the queued request whose key had that name.
    """
    opened = threading.Event()
    worker = stub([opened.is_set, *OK])
    asked = {**settings(worker.url), "limits": {"in_flight": 1}}
    asked["auth"]["keys"] = [f"${{{name.upper()}_KEY}}" for name in ("ops", "a", "b")]
    del asked["admin"]
    router = route(**asked)
    with ThreadPoolExecutor(2) as crowd:
        first = crowd.submit(ask, router, "a")
        until(lambda: worker.requests)
        second = crowd.submit(ask, router, "a")
        until(lambda: router.metric("warmroute_queue_length") == 1)
        asked["auth"]["keys"].pop(0)
        change(router, **asked, strategy="leastload")  # reads the queued request anew
        opened.set()
        assert first.result().status_code == second.result().status_code == 200
    assert len(salts_of(worker)) == 1
    ask(router, "b")
    assert len(salts_of(worker)) == 2


def test_who_signs_has_a_cache_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signed request is known by its access key, but its salt is derived from the secret key."""
    monkeypatch.setenv("SECRET", "aws-secret")
    told = settings("http://w:1")
    found = set()
    for access in ("AKIA1", "AKIA2"):
        signing = {"sigv4": [{"access_key": access, "secret_key": "${SECRET}"}]}
        salts = Salts(Settings.model_validate({**told, "sagemaker": signing}))
        assert salts.meant(access, "ops") == access
        request = Request(model="m")
        field = give(ENDPOINTS[CHAT], request, salts.by_name[access])
        assert json.loads(b"{%b}" % field) == {"cache_salt": request.cache_salt}
        found.add(request.cache_salt)
    assert len(found) == 1
