"""Settings for authentication, listening addresses and CORS: what is accepted or refused."""

from pathlib import Path

import pytest

from router.settings.errors import SettingsError
from router.settings.loader import loads
from router.settings.model import Settings
from router.settings.schema import describe
from router.settings.server import AuthSettings
from router.settings.types import Address

WORKER = "workers: [http://a:1]\n"
KEYS = {
    "ONE": "sk-one-0123456789",
    "TWO": "sk-two-0123456789",
    "SHORT": "sk-short-012345",
    "SPACED": "sk spaced 0123456789",
}
TWO_FORMS = (
    "a secret is never written here: give ${NAME} for an environment variable,"
    " or file:/path for a file that holds it"
)
ORIGIN = (
    "is not an origin: write it as browsers do, such as https://app.example or"
    ' http://localhost:3000, without a path; or "*" for all'
)
OPEN = "can be reached from other machines, and nothing says who may come in:"
TELL = f"{OPEN} give auth: {{keys: [...]}}, or write auth: none to let everyone in"
TELL_ADMIN = (
    f"{OPEN} give admin: {{keys: [...]}} or auth: {{keys: [...]}},"
    " or write auth: none to let everyone in"
)
NONE = 'must be none, or a mapping with "keys"'


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)


def wrong(text: str) -> list[str]:
    """Return the messages for a text, one a line, and check that they contain no key."""
    with pytest.raises(SettingsError) as caught:
        loads(WORKER + text, "f")
    assert not any(key in str(caught.value) for key in KEYS.values())
    return [line.removeprefix("f:") for line in str(caught.value).split("\n")]


def names(text: str) -> list[str]:
    """Return the names of the clients' keys and of the operators' keys, each joined by commas."""
    settings = loads(WORKER + text)
    return [",".join(k.name for k in keys) for keys in (settings.door_keys, settings.admin_keys)]


def test_keys_are_secrets_with_names() -> None:
    """Their names are given, or made of their position; the key itself is never listed."""
    settings = loads(WORKER + "auth: {keys: ['${ONE}', {name: bob, key: '${TWO}'}]}")
    assert [(key.name, key.key.get_secret_value()) for key in settings.door_keys] == [
        ("key-1", KEYS["ONE"]),
        ("bob", KEYS["TWO"]),
    ]
    assert [tuple(row) for row in describe(settings) if row.path.startswith("auth")] == [
        ("auth.keys[0].name", "key-1", "default"),
        ("auth.keys[0].key", "***", "set"),
        ("auth.keys[0].engine_fields", "false", "default"),
        ("auth.keys[1].name", "bob", "set"),
        ("auth.keys[1].key", "***", "set"),
        ("auth.keys[1].engine_fields", "false", "default"),
        ("auth.separate_caches", "false", "default"),
    ]
    assert not any(key in repr(settings) for key in KEYS.values())


def test_operators_keys_do_not_trust_anyone_with_engines() -> None:
    """They open no path that leads to an engine."""
    (message,) = wrong("admin: {keys: [{key: '${ONE}', engine_fields: true}]}")
    assert "admin.keys[0].engine_fields" in message


def test_a_key_may_be_in_a_file(tmp_path: Path) -> None:
    """The file contains only the key."""
    (tmp_path / "key").write_text(f"{KEYS['ONE']}\n")
    (key,) = loads(f"{WORKER}auth: {{keys: ['file:{tmp_path}/key']}}").door_keys
    assert key.key.get_secret_value() == KEYS["ONE"]


def test_operators_have_the_keys_of_the_door_unless_they_have_their_own() -> None:
    """Operators' own keys do not give access for clients."""
    assert names("") == ["", ""]
    assert names("auth: none") == ["", ""]
    assert names("auth: {keys: ['${ONE}']}") == ["key-1", "key-1"]
    assert names("admin: {keys: [{name: ops, key: '${ONE}'}]}") == ["", "ops"]
    both = "auth: {keys: ['${ONE}']}\nadmin: {keys: [{name: ops, key: '${TWO}'}]}"
    assert names(both) == ["key-1", "ops"]


def test_none_is_something_else_than_nothing() -> None:
    """An explicit `none` is kept, and listed differently from a missing `auth`."""
    said, unsaid = loads(WORKER + "auth: none"), loads(WORKER)
    assert said.auth == Settings(workers=unsaid.workers, auth="none").auth
    assert isinstance(said.auth, AuthSettings)
    assert unsaid.auth is None
    rows = [next(row for row in describe(one) if row.path == "auth") for one in (said, unsaid)]
    assert [(row.value, row.source) for row in rows] == [
        ("none", "set"),
        ("everyone on this machine", "default"),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("auth: sk-literal", [f"auth: {NONE}"]),
        ("auth: off", [f"auth: {NONE}"]),
        ("auth: ['${ONE}']", [f"auth: {NONE}"]),
        ("auth: ", ["auth: has no value; give it one or remove it"]),
        ("auth: {}", ["auth.keys: required key is missing"]),
        ("auth: {keys: []}", ["auth.keys: must not be empty"]),
        ("auth: {keys: '${ONE}'}", ["auth.keys: must be a list"]),
        ("auth: {kees: 1}", ["keys: required", 'auth.kees: unknown key; did you mean "keys"?']),
        ("auth: {keys: [sk-literal]}", [f"auth.keys[0]: {TWO_FORMS}"]),
        ("auth: {keys: [~]}", ["auth.keys[0]: has no value; give it one or remove it"]),
        ("auth: {keys: [{name: a}]}", ["auth.keys[0].key: required key is missing"]),
        ("auth: {keys: [{key: sk-literal}]}", [f"auth.keys[0].key: {TWO_FORMS}"]),
        (
            "auth: {keys: [{key: '${ONE}', nam: a}]}",
            ['auth.keys[0].nam: unknown key; did you mean "name"?'],
        ),
        (
            "auth: {keys: [{key: '${ONE}', name: a b}]}",
            ['"a b" is not a name: write 1 to 259 letters, digits and . _ : - [ ]'],
        ),
        (
            "auth: {keys: ['${SHORT}']}",
            ["must be at least 16 characters long; `openssl rand -hex 32` makes one"],
        ),
        ("auth: {keys: ['${SPACED}']}", ["holds a space, which no client can send in a key"]),
        ("auth: {keys: ['${ONE}', '${ONE}']}", ["auth.keys[1]: the same key as [0]"]),
        (
            "auth: {keys: [{name: key-2, key: '${ONE}'}, '${TWO}']}",
            ['auth.keys[1]: "key-2" is already the name of [0]'],
        ),
        (  # a request without a signature would match this one
            "sagemaker: {sigv4: [{access_key: '', secret_key: '${ONE}'}]}\nauth: none",
            ['sagemaker.sigv4[0].access_key: "" is not a name'],
        ),
        (  # logs, turns of tenants and caches know a key by its name
            "sagemaker: {sigv4: [{access_key: A, secret_key: '${ONE}'}, {access_key: A, secret_key:"
            " '${TWO}'}, {access_key: b, secret_key: '${ONE}'}]}\n"
            "auth: {keys: [{name: b, key: '${TWO}'}]}",
            [
                'sagemaker.sigv4[1].access_key: "A" is already the name of sagemaker.sigv4[0]',
                'sagemaker.sigv4[2].access_key: "b" is already the name of auth.keys[0]',
            ],
        ),
        ("admin: {keys: []}", ["admin.keys: must not be empty"]),
        ("admin: {keys: ['${ONE}', '${ONE}']}", ["admin.keys[1]: the same key as [0]"]),
        ("admin: {listen: 9090}", ["admin.listen: 9090 is not an address"]),
        ("cors: https://a", ["cors: must be a list"]),
        ("cors: []", ["cors: must not be empty"]),
        ("cors: [https://a/]", [f'cors[0]: "https://a/" {ORIGIN}']),
        ("cors: [https://A]", [f'cors[0]: "https://A" {ORIGIN}']),
        ("cors: [a.example]", [f'cors[0]: "a.example" {ORIGIN}']),
        ("cors: ['null']", [f'cors[0]: "null" {ORIGIN}']),
        ("cors: ['https://*.a']", [f'cors[0]: "https://*.a" {ORIGIN}']),
        ("cors: ['*', https://a]", ['cors: "*" allows every origin: remove it, or the others']),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, said: list[str]) -> None:
    """The message has the line and what to write instead, and shows nothing that may be secret."""
    lines = wrong(text)
    assert len(lines) == len(said)
    for line, part in zip(lines, said, strict=True):
        assert line.startswith("2: ")
        assert part in line
        assert "literal" not in line


def test_origins_are_what_browsers_send() -> None:
    """Web pages, pages on this machine, and desktop apps made of web pages."""
    cors = (
        "cors: [https://app.example, 'http://localhost:3000', 'http://[::1]:3', tauri://localhost]"
    )
    assert loads(WORKER + cors).cors == (
        "https://app.example",
        "http://localhost:3000",
        "http://[::1]:3",
        "tauri://localhost",
    )
    assert loads(WORKER + "cors: ['*']").cors == ("*",)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("listen: 0.0.0.0:80", [f"2: listen: 0.0.0.0:80 {TELL}"]),
        ("listen: '[::]:80'", [f"2: listen: [::]:80 {TELL}"]),
        ("listen: door.example:80", [f"2: listen: door.example:80 {TELL}"]),
        (
            "listen: 10.0.0.1:80\nadmin: {keys: ['${ONE}']}",
            [f"2: listen: 10.0.0.1:80 {TELL}"],
        ),
        ("admin: {listen: 0.0.0.0:90}", [f"2: admin.listen: 0.0.0.0:90 {TELL_ADMIN}"]),
        (
            "listen: 0.0.0.0:80\nadmin: {listen: 0.0.0.0:90}",
            [f"2: listen: 0.0.0.0:80 {TELL}", f"3: admin.listen: 0.0.0.0:90 {TELL_ADMIN}"],
        ),
    ],
)
def test_a_door_does_not_stand_open_by_accident(text: str, said: list[str]) -> None:
    """The message names both remedies."""
    assert wrong(text) == said


@pytest.mark.parametrize(
    ("listen", "admin", "said"),
    [
        ("127.0.0.1:80", "127.0.0.1:80", "127.0.0.1:80 is already the address of listen"),
        (None, "127.0.0.1:8080", "127.0.0.1:8080 is already the address of listen by default"),
        (None, "localhost:8080", "localhost:8080 is already the address of listen by default"),
        *(
            (one, other, f"{other} is already the address of listen ({one})")
            for one, other in [
                ("localhost:80", "LOCALHOST:80"),
                ("127.0.0.1:80", "localhost:80"),
                ("door.example:80", "Door.example:80"),
                ("127.0.0.1:80", "0.0.0.0:80"),
                ("localhost:80", "0.0.0.0:80"),
                ("door.example:80", "0.0.0.0:80"),
                ("0.0.0.0:80", "127.0.0.1:80"),
                ("[::]:80", "[::1]:80"),
                ("[::]:80", "127.0.0.1:80"),
                ("[::ffff:127.0.0.1]:80", "127.0.0.1:80"),
            ]
        ),
    ],
)
def test_an_address_is_listened_on_once(listen: str | None, admin: str, said: str) -> None:
    """However it is written, and if it is only a part of the other; the default counts as well."""
    text = f"auth: none\nadmin: {{listen: '{admin}'}}\n"
    text += f"listen: '{listen}'\n" if listen else ""
    remedy = "give another port, or leave it out to serve both there"
    assert wrong(text) == [f"3: admin.listen: {said}: {remedy}"]


@pytest.mark.parametrize(
    "text",
    [
        "listen: 127.0.0.1:80",
        "listen: '[::1]:80'\nadmin: {listen: localhost:90}",
        "listen: 0.0.0.0:80\nauth: none",
        "listen: 0.0.0.0:80\nauth: {keys: ['${ONE}']}",
        "listen: 0.0.0.0:80\nauth: none\nadmin: {listen: 0.0.0.0:90}",
        "listen: 0.0.0.0:80\nauth: {keys: ['${ONE}']}\nadmin: {listen: 0.0.0.0:90}",
        "admin: {listen: 0.0.0.0:90, keys: ['${ONE}']}",
        "listen: 127.0.0.1:0\nadmin: {listen: 127.0.0.1:0}",
        "admin: {listen: 127.0.0.1:8081}",
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
    for auth in ("auth: none", "auth: {keys: ['${ONE}']}"):
        settings = loads(WORKER + auth)
        assert settings.listening_on(public) == settings.model_copy(update={"listen": public})
