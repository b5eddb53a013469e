"""Contradictions between settings, and addresses that must not stand open by accident."""

from pathlib import Path

import pytest

from router.settings.loader import loads
from router.settings.model import Settings
from router.settings.schema import describe
from router.settings.server import AuthSettings
from router.settings.types import Address
from tests.settings.wrong import KEYS, WORKER, refuses, wrong

pytestmark = pytest.mark.usefixtures("keys")


def test_workers_are_told_apart() -> None:
    """Names are unique in the file, addresses in a pool; one message if both are repeated."""
    refuses(
        "workers:\n"
        "- {url: http://a:80, name: x}\n"
        "- {url: http://b:1, name: x}\n"
        "- http://A\n"
        "- http://b:1/\n"
        "- http://c:1\n"
        "- http://c:1/\n",
        ("3: workers[1].name", '"x" is already the name of workers[0]'),
        ("4: workers[2]", "the same address as workers[0]: a:80"),
        ("5: workers[3]", "the same address as workers[1]: b:1"),
        ("7: workers[5]", "the same address as workers[4]: c:1"),
    )


def test_an_engine_speaks_for_one_worker() -> None:
    """Two workers cannot share an engine's address, but engines may dial in at one of ours."""
    refuses(
        "strategy: kvaware\n"
        "workers:\n"
        "- {url: http://a:1, kv_events: 'tcp://e:1', kv_replay: 'tcp://e:2'}\n"
        "- {url: http://b:1, kv_events: 'tcp://E:1', kv_replay: 'tcp://f:2'}\n"
        "- {url: http://c:1, kv_events: 'tcp://g:1', kv_replay: 'tcp://e:2'}\n"
        "- {url: http://d:1, kv_events: 'tcp://*:1'}\n"
        "- {url: http://e:1, kv_events: 'tcp://*:1'}\n",
        ("4: workers[1].kv_events", "the same address as that of workers[0]: tcp://E:1"),
        ("5: workers[2].kv_replay", "the same address as that of workers[0]: tcp://e:2"),
    )


def test_addresses_of_engines_that_could_not_be_used() -> None:
    """ZeroMQ takes a port that is too large for another one, and a wildcard cannot be asked."""
    refuses(
        "strategy: kvaware\n"
        "workers:\n"
        "- {url: http://a:1, kv_events: 'tcp://e:65536'}\n"
        "- {url: http://b:1, kv_events: 'tcp://*:0'}\n"
        "- {url: http://c:1, kv_events: 'tcp://*:65535', kv_replay: 'tcp://*:1'}\n"
        "- {url: http://d:1, kv_events: 'ipc:///run/e:99999'}\n",
        ("3: workers[0].kv_events", "the port must be 1 to 65535"),
        ("4: workers[1].kv_events", "the port must be 1 to 65535"),
        ("5: workers[2].kv_replay", "the router asks there: write the engine's host"),
    )


def test_pools_are_told_apart() -> None:
    """Names and models are unique, and a worker in two pools is refused: each saw half its load."""
    refuses(
        "pools:\n"
        "- {name: p, models: [x, 'y*'], workers: [http://a:1]}\n"
        "- {name: p, models: ['y*'], workers: [http://a:1]}\n"
        "- {name: q, workers: [{url: http://a:1, name: a2}]}\n"
        "- {name: r, models: ['*'], workers: [{url: http://b:1, name: a2}]}\n",
        ("3: pools[1].name", '"p" is already the name of pools[0]'),
        ("3: pools[1].models[0]", '"y*" is already routed to pools[0]'),
        ("3: pools[1].workers[0]", "a:1; a worker stands in one pool"),
        ("4: pools[2].workers[0].url", "the same address as pools[0].workers[0]: a:1; a worker"),
        ("5: pools[3].models[0]", '"*" is already routed to pools[2]'),
        ("5: pools[3].workers[0].name", '"a2" is already the name of pools[2].workers[0]'),
    )


def test_endpoints_are_told_apart() -> None:
    """A name that is given twice could stand for two models."""
    endpoints = "[{name: e, model: m1}, {name: e, model: m2}, f, f]"
    refuses(
        f"{WORKER}sagemaker: {{endpoints: {endpoints}}}",
        ("2: sagemaker.endpoints[1].name", "already the name of sagemaker.endpoints[0]"),
        ("2: sagemaker.endpoints[3]", "already the name of sagemaker.endpoints[2]"),
    )


STATEFUL = "workers: [{url: http://a:1, stateful: true}]\nstrategy: {name: session, spill: 1s}"


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        (STATEFUL, "2: strategy.spill", "these workers keep their sessions themselves"),
        (
            f"{WORKER}strategy: {{name: session, spill: 1s}}\nsession: {{on_worker_lost: error}}",
            "2: strategy.spill",
            "cannot be with session.on_worker_lost: error",
        ),
        (
            f"{WORKER}strategy: {{name: session, spill: 1s, over: {{name: chbl}}}}",
            "2: strategy.spill",
            "of no use over chbl",
        ),
        (
            "strategy: session\nworkers:\n- {url: http://a:1, stateful: true}\n- http://b:1",
            "4: workers[1]",
            "must be stateful too",
        ),
    ],
)
def test_sessions_that_would_move_without_their_state(text: str, place: str, words: str) -> None:
    """A worker that keeps its sessions itself keeps them to itself."""
    refuses(text, (place, words))


NONE = 'must be none, or a mapping with "keys"'
NAMED = "is already the name of"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("auth: sk-sekret", [("auth", NONE)]),
        ("auth: off", [("auth", NONE)]),
        ("auth: ['${ONE}']", [("auth", NONE)]),
        ("auth: {}", [("auth.keys", "required key is missing")]),
        ("auth: {keys: []}", [("auth.keys", "must not be empty")]),
        ("auth: {keys: '${ONE}'}", [("auth.keys", "must be a list")]),
        ("auth: {keys: [sk-sekret]}", [("auth.keys[0]", "give ${NAME}")]),
        ("auth: {keys: [~]}", [("auth.keys[0]", "has no value")]),
        ("auth: {keys: [{name: a}]}", [("auth.keys[0].key", "required key is missing")]),
        ("auth: {keys: [{key: sk-sekret}]}", [("auth.keys[0].key", "give ${NAME}")]),
        ("auth: {keys: [{key: '${ONE}', nam: a}]}", [("auth.keys[0].nam", 'mean "name"?')]),
        ("auth: {keys: ['${SHORT}']}", [("auth.keys[0]", "at least 16 characters")]),
        ("auth: {keys: ['${SPACED}']}", [("auth.keys[0]", "holds a space")]),
        ("auth: {keys: ['${ONE}', '${ONE}']}", [("auth.keys[1]", "the same key as [0]")]),
        (
            "auth: {keys: [{name: key-2, key: '${ONE}'}, '${TWO}']}",
            [("auth.keys[1]", f'"key-2" {NAMED} [0]')],
        ),
        (  # a request without a signature would match this one
            "sagemaker: {sigv4: [{access_key: '', secret_key: '${ONE}'}]}\nauth: none",
            [("sagemaker.sigv4[0].access_key", '"" is not a name')],
        ),
        (
            "sagemaker: {sigv4: [{access_key: a, secret_key: '${ONE}'}]}",
            [("sagemaker.sigv4", "nothing says who may use the others")],
        ),
        (  # logs, turns of tenants and caches know a key by its name
            "sagemaker: {sigv4: [{access_key: A, secret_key: '${ONE}'}, {access_key: A, secret_key:"
            " '${TWO}'}, {access_key: b, secret_key: '${ONE}'}]}\n"
            "auth: {keys: [{name: b, key: '${TWO}'}]}",
            [
                ("sagemaker.sigv4[1].access_key", f'"A" {NAMED} sagemaker.sigv4[0]'),
                ("sagemaker.sigv4[2].access_key", f'"b" {NAMED} auth.keys[0]'),
            ],
        ),
        ("admin: {keys: ['${ONE}', '${ONE}']}", [("admin.keys[1]", "the same key as [0]")]),
        (  # they open no path that leads to an engine
            "admin: {keys: [{key: '${ONE}', engine_fields: true}]}",
            [("admin.keys[0].engine_fields", "opens no inference path")],
        ),
        ("cors: https://a", [("cors", "must be a list")]),
        ("cors: [https://a/]", [("cors[0]", "is not an origin")]),
        ("cors: [https://A]", [("cors[0]", "is not an origin")]),
        ("cors: ['null']", [("cors[0]", "is not an origin")]),
        ("cors: ['https://*.a']", [("cors[0]", "is not an origin")]),
        ("cors: ['*', https://a]", [("cors", '"*" allows every origin')]),
    ],
)
def test_keys_and_origins_that_make_no_sense(text: str, expected: list[tuple[str, str]]) -> None:
    """The message has the line and what to write instead, and shows nothing that may be secret."""
    refuses(WORKER + text, *((f"2: {place}", words) for place, words in expected))


def test_origins_are_what_browsers_send() -> None:
    """Web pages, pages on this machine, and desktop apps made of web pages."""
    origins = (
        "https://app.example",
        "http://localhost:3000",
        "http://[::1]:3",
        "tauri://localhost",
    )
    for cors in (origins, ("*",)):
        assert loads(f"{WORKER}cors: {list(cors)}").cors == cors


def test_keys_are_secrets_with_names(tmp_path: Path) -> None:
    """Their names are given, or made of their position; the key itself is never listed."""
    (tmp_path / "key").write_text(f"{KEYS['ONE']}\n")
    listed = f"['file:{tmp_path}/key', {{name: bob, key: '${{TWO}}'}}]"
    settings = loads(f"{WORKER}auth: {{keys: {listed}}}")
    assert [(key.name, key.key.get_secret_value()) for key in settings.client_keys] == [
        ("key-1", KEYS["ONE"]),
        ("bob", KEYS["TWO"]),
    ]
    rows = {row.path: (row.value, row.source) for row in describe(settings)}
    assert rows["auth.keys[0].name"] == ("key-1", "default")
    assert rows["auth.keys[0].key"] == ("***", "set")
    assert rows["auth.keys[1].name"] == ("bob", "set")
    assert not any(key in repr(settings) for key in KEYS.values())


@pytest.mark.parametrize(
    ("text", "clients", "operators"),
    [
        ("", [], []),
        ("auth: none", [], []),
        ("auth: {keys: ['${ONE}']}", ["key-1"], ["key-1"]),
        ("admin: {keys: [{name: ops, key: '${ONE}'}]}", [], ["ops"]),
        (
            "auth: {keys: ['${ONE}']}\nadmin: {keys: [{name: ops, key: '${TWO}'}]}",
            ["key-1"],
            ["ops"],
        ),
    ],
)
def test_operators_have_the_keys_of_the_door_unless_they_have_their_own(
    text: str, clients: list[str], operators: list[str]
) -> None:
    """Operators' own keys do not give access for clients."""
    settings = loads(WORKER + text)
    assert [key.name for key in settings.client_keys] == clients
    assert [key.name for key in settings.admin_keys] == operators


def test_none_is_something_else_than_nothing() -> None:
    """An explicit `none` is kept, and listed differently from a missing `auth`."""
    open_, closed = loads(WORKER + "auth: none"), loads(WORKER)
    assert open_.auth == Settings(workers=closed.workers, auth="none").auth
    assert isinstance(open_.auth, AuthSettings)
    rows = [next(row for row in describe(it) if row.path == "auth") for it in (open_, closed)]
    assert [(row.value, row.source) for row in rows] == [
        ("none", "set"),
        ("everyone on this machine", "default"),
    ]


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("listen: 0.0.0.0:80", ["2: listen"]),
        ("listen: '[::]:80'", ["2: listen"]),
        ("listen: door.example:80", ["2: listen"]),
        ("listen: 10.0.0.1:80\nadmin: {keys: ['${ONE}']}", ["2: listen"]),
        ("admin: {listen: 0.0.0.0:90}", ["2: admin.listen"]),
        ("listen: 0.0.0.0:80\nadmin: {listen: 0.0.0.0:90}", ["2: listen", "3: admin.listen"]),
    ],
)
def test_a_door_does_not_stand_open_by_accident(text: str, places: list[str]) -> None:
    """The message names both remedies."""
    refuses(WORKER + text, *((place, "can be reached from other machines") for place in places))
    for message in wrong(WORKER + text):
        assert "auth: {keys: [...]}" in message
        assert "auth: none" in message


@pytest.mark.parametrize(
    ("listen", "admin"),
    [
        (None, "127.0.0.1:8080"),
        (None, "localhost:8080"),
        ("127.0.0.1:80", "127.0.0.1:80"),
        ("localhost:80", "LOCALHOST:80"),
        ("127.0.0.1:80", "localhost:80"),
        ("door.example:80", "Door.example:80"),
        ("localhost:80", "0.0.0.0:80"),
        ("door.example:80", "0.0.0.0:80"),
        ("0.0.0.0:80", "127.0.0.1:80"),
        ("[::]:80", "[::1]:80"),
        ("[::]:80", "127.0.0.1:80"),
        ("[::ffff:127.0.0.1]:80", "127.0.0.1:80"),
    ],
)
def test_an_address_is_listened_on_once(listen: str | None, admin: str) -> None:
    """However it is written, and if it is only a part of the other; the default counts as well."""
    text = f"{WORKER}auth: none\nadmin: {{listen: '{admin}'}}\n"
    text += f"listen: '{listen}'\n" if listen else ""
    refuses(text, ("3: admin.listen", f"{admin} is already the address of listen"))


@pytest.mark.parametrize(
    "text",
    [
        "listen: 127.0.0.1:80",
        "listen: '[::1]:80'\nadmin: {listen: localhost:90}",
        "listen: 0.0.0.0:80\nauth: none\nadmin: {listen: 0.0.0.0:90}",
        "listen: 0.0.0.0:80\nauth: {keys: ['${ONE}']}\nadmin: {listen: 0.0.0.0:90}",
        "admin: {listen: 0.0.0.0:90, keys: ['${ONE}']}",
        "listen: 127.0.0.1:0\nadmin: {listen: 127.0.0.1:0}",
        "admin: {listen: 127.0.0.2:8080}",
        "admin: {listen: '[::1]:8080'}",
        "listen: 0.0.0.0:80\nauth: none\nadmin: {listen: '[::1]:80'}",
        "listen: a.example:80\nauth: none\nadmin: {listen: b.example:80}",
    ],
)
def test_a_door_may_stand_open_on_purpose(text: str) -> None:
    """Allowed on a loopback address, with keys, or if the file says `auth: none`."""
    assert loads(WORKER + text).workers


def test_the_command_line_opens_no_door_either() -> None:
    """An address given on the command line is held to the same rules as the file's."""
    public, local = Address("0.0.0.0", 80), Address("127.0.0.1", 9000)  # noqa: S104
    closed = loads(WORKER + "admin: {listen: 127.0.0.1:9000}")
    with pytest.raises(ValueError, match=r"^0\.0\.0\.0:80 can be reached .* auth: none to let"):
        closed.listening_on(public)
    with pytest.raises(ValueError, match=r"^127\.0\.0\.1:9000 is already the address of listen"):
        closed.listening_on(local)
    assert closed.listening_on(Address("::1", 5)).listen == Address("::1", 5)
    assert loads(WORKER + "auth: none").listening_on(public).listen == public
