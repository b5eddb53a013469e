"""What the log says of settings: what a reload changed, and what has no effect."""

from pathlib import Path

import pytest

from router.reload import changes, idle, needs_restart
from router.settings.loader import loads
from router.settings.model import Settings
from tests.pems import write_pems
from tests.settings.wrong import KEYS, WORKER

pytestmark = pytest.mark.usefixtures("keys")

POOLS = """
pools:
  - {name: p, models: ["x"], workers: [{url: http://a:1, name: a}, {url: http://b:1, name: b}]}
  - {name: q, strategy: roundrobin, workers: [{url: "http://c:1", name: c}]}
"""


def changed(old: str, new: str) -> list[str]:
    """Return the changes from one text to another, and check that they contain no secret."""
    sentences = changes(loads(old), loads(new))
    assert not any(key in sentence for sentence in sentences for key in KEYS.values())
    return sentences


@pytest.mark.parametrize(
    ("old", "new", "sentences"),
    [
        ("", "limits: {body: 32MiB}", ["limits.body: 16MiB → 32MiB"]),
        ("", "limits: {max_tokens: 5}", ["limits.max_tokens: no limit → 5"]),
        ("limits: {retries: 50%}", "limits: {retries: 0}", ["limits.retries: 0.5 → 0"]),
        ("timeouts: {total: 2h}", "timeouts: {total: off}", ["timeouts.total: 2h → off"]),
        ("", "cors: [https://a, https://b]", ["cors: none → https://a, https://b"]),
        ("logs: {requests: true}", "", ["logs.requests: true → false"]),
        (
            "",
            "strategy: {name: prefixaware, memory: 1GiB}",
            ["pool default: strategy.memory: 64MiB → 1GiB"],
        ),
        ("", "strategy: leastload", ["pool default: strategy: prefixaware → leastload"]),
        ("", "tokenizer: bytes", ["pool default: tokenizer.source: auto → bytes"]),
        (
            "",
            "listen: 127.0.0.1:9000",
            ["listen: 127.0.0.1:8080 → 127.0.0.1:9000; waits for a restart"],
        ),
        (
            "auth: {keys: ['${ONE}', {name: bob, key: '${TWO}'}]}",
            "auth: {keys: [{name: bob, key: '${ONE}'}, '${TWO}']}",
            ["auth: key key-1 removed", "auth: key bob changed", "auth: key key-2 added"],
        ),
        (
            "auth: {keys: [{name: bob, key: '${ONE}'}]}",
            "auth: {keys: [{name: bob, key: '${ONE}', engine_fields: true}]}",
            ["auth: key bob now may set engine fields"],
        ),
        ("", "auth: none", ["auth: everyone on this machine → none"]),
        (
            "auth: none",
            "auth: {keys: ['${ONE}']}",
            ["auth: none → keys", "auth: key key-1 added"],
        ),
        (
            "admin: {keys: ['${ONE}']}",
            "",
            ["admin: keys → as auth", "admin: key key-1 removed"],
        ),
        # Nothing is reported for a default that is written out.
        ("", "limits: {body: 16384KiB}\nhealth: {}\nstrategy: prefixaware", []),
        ("auth: {keys: ['${ONE}']}", "auth: {keys: ['${ONE}']}", []),
    ],
)
def test_a_changed_setting_is_one_sentence(old: str, new: str, sentences: list[str]) -> None:
    """The sentence has both values as a file would state them."""
    assert changed(WORKER + old, WORKER + new) == sentences


def test_the_same_worker_in_another_form_is_no_change() -> None:
    """As a mapping, or in a pool of that name."""
    assert changed(WORKER, "workers: [{url: http://a:1/, name: 'a:1'}]") == []
    assert changed(WORKER, "pools: [{name: default, workers: [http://a:1]}]") == []


def test_workers_come_go_move_and_change() -> None:
    """Workers are told apart by name, within pools and at the top level."""
    assert changed(
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
    worker = "workers: [{url: http://a:1, api_key: '${%s}'}]"
    assert changed(worker % "ONE", worker % "TWO") == ["worker a:1: api_key changed"]


def test_pools_come_and_go() -> None:
    """The workers of such pools are reported as well."""
    assert changed(POOLS, WORKER) == [
        "pool p removed",
        "pool q removed",
        "pool default added",
        "worker a removed from pool p",
        "worker b removed from pool p",
        "worker c removed from pool q",
        "worker a:1 added to pool default",
    ]


def with_tls(folder: Path, tls: str, worker: str = "") -> Settings:
    """Load settings whose files are in a folder."""
    write_pems(folder)
    return loads(f"workers: [{{url: 'https://a:1'{worker}}}]\n{tls}", folder=folder)


def test_tls_begins_and_ends_with_a_restart(tmp_path: Path) -> None:
    """So does asking for client certificates; another certificate or CA does not need one."""
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
    assert needs_restart(one, asking) == ["tls.client_ca"]
    assert changes(one, other) == [f"tls.certificate: {tmp_path}/one.pem → {tmp_path}/both.pem"]
    trusting = with_tls(tmp_path, "", ", tls: {ca: one.pem}")
    assert changes(none, trusting) == [f"worker a:1: tls.ca: none → {tmp_path}/one.pem"]
    assert needs_restart(none, trusting) == []


def test_what_needs_a_restart_is_named() -> None:
    """Settings that need a restart are named, and no others."""
    new = loads(
        "workers: [http://b:1]\nlisten: 127.0.0.1:1\nadmin: {listen: 'localhost:2'}\n"
        "auth: none\nlimits: {body: 1B}\nclients: {connections: 1}\nlogs: {format: json}\n"
    )
    assert needs_restart(loads(WORKER), new) == ["listen", "admin.listen"]
    assert needs_restart(new, new) == []


def warnings(strategy: str, line: str) -> list[str]:
    """Return the warnings of settings with this strategy and this line."""
    workers = "" if "workers" in line else WORKER
    return list(idle(loads(f"strategy: {strategy}\n{workers}{line}")))


CONTROLLER = "controller: http://c:1"
STORE = "tiers: {l2: {lmcache: {coordinator: http://c:1}}}"
SESSION = "session: {sliding: true}"
EVENTS = "workers: [{url: http://a:1, kv_events: tcp://a:5557}]"
STATEFUL = "workers: [{url: http://a:1, stateful: true}]"


@pytest.mark.parametrize(
    ("line", "unused", "used", "begin"),
    [
        (CONTROLLER, "prefixaware", "kvaware", "controller: no pool has a strategy"),
        (CONTROLLER, "session", "{name: session, over: kvaware}", "controller: no pool"),
        (STORE, "session", "kvaware", "tiers.l2.lmcache.coordinator: no pool has"),
        (EVENTS, "session", "kvaware", "pool default: `kv_events` is heard by"),
        (SESSION, "kvaware", "session", "session: no pool has a strategy"),
        (STATEFUL, "kvaware", "session", "pool default: `stateful` opens no"),
    ],
)
def test_a_setting_that_no_strategy_uses(line: str, unused: str, used: str, begin: str) -> None:
    """One warning, unless a pool has a strategy for it, be it below sessions."""
    (warning,) = warnings(unused, line)
    assert warning.startswith(begin)
    assert warnings(used, line) == []


def test_one_pool_that_uses_it_is_enough() -> None:
    """A warning about workers is about their own pool."""
    pools = "pools: [{{name: a, models: [a], workers: [http://a:1]}}, {{name: b, workers:"
    pools += " [{{url: http://b:1, kv_events: tcp://b:1}}], strategy: {}}}]\n"
    assert warnings("prefixaware", pools.format("kvaware") + CONTROLLER) == []
    told = warnings("kvaware", pools.format("roundrobin") + CONTROLLER)
    assert [warning.partition(" is heard")[0] for warning in told] == ["pool b: `kv_events`"]


@pytest.mark.parametrize(
    "line",
    [
        "session: {}",
        "session: {redis: {url: redis://r:1}}",
        "tiers: {l2: {enabled: false, lmcache: {coordinator: http://c:1}}}",
    ],
)
def test_what_is_not_asked_for_is_not_told_of(line: str) -> None:
    """Such as an empty section, or a store that is off."""
    assert warnings("prefixaware", line) == []
