"""What the log says that a reload changed."""

from pathlib import Path

import pytest

from router.reload import changes, needs_restart
from router.settings.loader import loads
from router.settings.model import Settings
from tests.pems import write_pems

WORKER = "workers: [http://a:1]\n"
POOLS = """
pools:
  - {name: p, models: ["x"], workers: [{url: http://a:1, name: a}, {url: http://b:1, name: b}]}
  - {name: q, strategy: roundrobin, workers: [{url: "http://c:1", name: c}]}
"""
KEYS = {name: f"sk-{name.lower()}-0123456789" for name in ("ONE", "TWO", "THREE")}


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)


def said(old: str, new: str) -> list[str]:
    """Return the changes from one text to another, and check that they contain no secret."""
    sentences = changes(loads(old), loads(new))
    assert not any(key in sentence for sentence in sentences for key in KEYS.values())
    return sentences


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("", "limits: {body: 32MiB}", "limits.body: 16MiB → 32MiB"),
        ("", "limits: {max_tokens: 5}", "limits.max_tokens: no limit → 5"),
        ("limits: {retries: 50%}", "limits: {retries: 0}", "limits.retries: 0.5 → 0"),
        ("timeouts: {total: 2h}", "timeouts: {total: off}", "timeouts.total: 2h → off"),
        ("", "health: {ejection: {panic: 0}}", "health.ejection.panic: 0.5 → 0"),
        ("", "cors: [https://a, https://b]", "cors: none → https://a, https://b"),
        ("logs: {requests: true}", "", "logs.requests: true → false"),
        (
            "",
            "strategy: {name: prefixaware, memory: 1GiB}",
            "pool default: strategy.memory: 64MiB → 1GiB",
        ),
        ("", "strategy: leastload", "pool default: strategy: prefixaware → leastload"),
        (
            "",
            "listen: 127.0.0.1:9000",
            "listen: 127.0.0.1:8080 → 127.0.0.1:9000; waits for a restart",
        ),
        (
            "",
            "admin: {listen: 127.0.0.1:9000}",
            "admin.listen: as listen → 127.0.0.1:9000; waits for a restart",
        ),
    ],
)
def test_a_changed_setting_is_one_sentence(old: str, new: str, sentence: str) -> None:
    """The sentence has both values as a file would state them."""
    assert said(WORKER + old, WORKER + new) == [sentence]


def test_the_same_is_nothing() -> None:
    """Nothing is reported for a default that is written out, or a worker in another form."""
    assert said(WORKER + "auth: {keys: ['${ONE}']}", WORKER + "auth: {keys: ['${ONE}']}") == []
    written = "limits: {body: 16384KiB}\nhealth: {}\nstrategy: prefixaware\n"
    assert said(WORKER, written + "workers: [{url: http://a:1/, name: 'a:1'}]") == []
    assert said(WORKER, "pools: [{name: default, workers: [http://a:1]}]") == []


def test_workers_come_go_move_and_change() -> None:
    """Workers are told apart by name, within pools and at the top level."""
    assert said(
        POOLS,
        """
pools:
  - {name: p, models: [x, y], workers: [{url: http://a:2, name: a, kv_tokens: 5}]}
  - {name: q, workers: [{url: "http://b:1", name: b, api_key: "${ONE}"}, http://d:1]}
""",
    ) == [
        "pool p: models: x → x, y",
        "pool q: strategy: roundrobin → prefixaware",
        "worker a: url: http://a:1 → http://a:2",
        "worker a: kv_tokens: as the worker reports → 5",
        "worker b moved from pool p to pool q",
        "worker b: api_key: none → ***",
        "worker c removed from pool q",
        "worker d:1 added to pool q",
    ]


def test_pools_come_and_go() -> None:
    """The workers of such pools are reported as well."""
    assert said(POOLS, WORKER) == [
        "pool p removed",
        "pool q removed",
        "pool default added",
        "worker a removed from pool p",
        "worker b removed from pool p",
        "worker c removed from pool q",
        "worker a:1 added to pool default",
    ]


def test_a_new_key_for_a_worker_is_told_without_it() -> None:
    """Only the fact of the change is reported, not the key."""
    worker = "workers: [{url: http://a:1, api_key: '${%s}'}]"
    assert said(worker % "ONE", worker % "TWO") == ["worker a:1: api_key changed"]


def test_keys_come_go_and_change() -> None:
    """Keys are told apart by name; a key without a name is called by its position."""
    assert said(
        WORKER + "auth: {keys: ['${ONE}', {name: bob, key: '${TWO}'}]}",
        WORKER + "auth: {keys: [{name: bob, key: '${THREE}'}, '${TWO}']}",
    ) == ["auth: key key-1 removed", "auth: key bob changed", "auth: key key-2 added"]
    assert said(
        WORKER + "auth: {keys: [{name: bob, key: '${ONE}'}]}",
        WORKER + "auth: {keys: [{name: bob, key: '${ONE}', engine_fields: true}]}",
    ) == ["auth: key bob now may set engine fields"]
    assert said(WORKER, WORKER + "auth: none") == ["auth: everyone on this machine → none"]
    assert said(
        WORKER + "auth: {keys: ['${ONE}']}",
        WORKER + "auth: {keys: ['${ONE}'], separate_caches: true}",
    ) == ["auth.separate_caches: false → true"]
    assert said(WORKER + "auth: none", WORKER + "auth: {keys: ['${ONE}']}") == [
        "auth: none → keys",
        "auth: key key-1 added",
    ]
    assert said(WORKER + "admin: {keys: ['${ONE}']}", WORKER) == [
        "admin: keys → as auth",
        "admin: key key-1 removed",
    ]


def with_tls(folder: Path, tls: str, worker: str = "") -> Settings:
    """Load settings whose files are in a folder."""
    write_pems(folder)
    return loads(f"workers: [{{url: 'https://a:1'{worker}}}]\n{tls}", folder=folder)


def test_tls_begins_and_ends_with_a_restart(tmp_path: Path) -> None:
    """Switching TLS or client_ca on or off needs a restart; another certificate does not."""
    none, one, other, asking = (
        with_tls(tmp_path, text)
        for text in (
            "",
            "tls: {certificate: one.pem, key: one.key}",
            "tls: {certificate: both.pem, key: one.key}",
            "tls: {certificate: one.pem, key: one.key, client_ca: one.pem}",
        )
    )
    both = ["tls.certificate", "tls.key"]
    assert (needs_restart(none, one), needs_restart(one, none)) == (both, both)
    assert (needs_restart(one, other), needs_restart(one, one)) == ([], [])
    assert changes(one, other) == [f"tls.certificate: {tmp_path}/one.pem → {tmp_path}/both.pem"]
    assert needs_restart(one, asking) == ["tls.client_ca"]
    assert changes(none, one) == [
        f"tls.certificate: none → {tmp_path}/one.pem; waits for a restart",
        f"tls.key: none → {tmp_path}/one.key; waits for a restart",
    ]


def test_a_worker_may_be_trusted_otherwise(tmp_path: Path) -> None:
    """A worker's CA can change without a restart."""
    before, after = with_tls(tmp_path, ""), with_tls(tmp_path, "", ", tls: {ca: one.pem}")
    assert changes(before, after) == [f"worker a:1: tls.ca: none → {tmp_path}/one.pem"]
    assert needs_restart(before, after) == []


def test_what_needs_a_restart_is_named() -> None:
    """Settings that need a restart are named, and no others."""
    old = loads(WORKER)
    new = loads(
        "workers: [http://b:1]\nlisten: 127.0.0.1:1\nadmin: {listen: 'localhost:2'}\n"
        "auth: none\nlimits: {body: 1B}\nclients: {connections: 1}\nlogs: {format: json}\n"
    )
    assert needs_restart(old, new) == ["listen", "admin.listen"]
    assert needs_restart(new, new) == []
