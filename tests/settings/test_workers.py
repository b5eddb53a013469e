"""What a settings file gives twice, or not at all: workers, engines, pools, endpoints."""

import pytest

from tests.settings.wrong import wrong

ONE_POOL = "; a worker stands in one pool, and a pool may have several models"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("listen: '[::1]:1'", ['f:1: no workers: give "workers" or "pools"']),
        ("workers: []", ["f:1: workers: must not be empty"]),
        ("pools: []", ["f:1: pools: must not be empty"]),
        ("workers: http://a:1", ["f:1: workers: must be a list"]),
        ("workers:", ["f:1: workers: has no value; give it one or remove it"]),
        ("pools: [http://a:1]", ["f:1: pools[0]: must be a mapping"]),
        (
            "pools: [{nam: x}]",
            [
                "f:1: pools[0].name: required key is missing",
                "f:1: pools[0].workers: required key is missing",
                'f:1: pools[0].nam: unknown key; did you mean "name"?',
            ],
        ),
    ],
)
def test_workers_or_pools_are_needed(text: str, said: list[str]) -> None:
    """One of the two must be given, and must not be empty."""
    assert wrong(text) == said


def test_workers_are_told_apart() -> None:
    """Names are unique in the file, addresses in a pool; one message if both are repeated."""
    assert wrong(
        "workers:\n"
        "- {url: http://a:80, name: x}\n"
        "- {url: http://b:1, name: x}\n"
        "- http://A\n"
        "- http://b:1/\n"
        "- http://c:1\n"
        "- http://c:1/\n"
    ) == [
        'f:3: workers[1].name: "x" is already the name of workers[0]',
        "f:4: workers[2]: the same address as workers[0]: a:80",
        "f:5: workers[3]: the same address as workers[1]: b:1",
        "f:7: workers[5]: the same address as workers[4]: c:1",
    ]


def test_an_engine_speaks_for_one_worker() -> None:
    """Two workers cannot share an engine's address, but engines may dial in at one of ours."""
    assert wrong(
        "strategy: kvaware\n"
        "workers:\n"
        "- {url: http://a:1, kv_events: 'tcp://e:1', kv_replay: 'tcp://e:2'}\n"
        "- {url: http://b:1, kv_events: 'tcp://E:1', kv_replay: 'tcp://f:2'}\n"
        "- {url: http://c:1, kv_events: 'tcp://g:1', kv_replay: 'tcp://e:2'}\n"
        "- {url: http://d:1, kv_events: 'tcp://*:1'}\n"
        "- {url: http://e:1, kv_events: 'tcp://*:1'}\n"
    ) == [
        "f:4: workers[1].kv_events: the same address as that of workers[0]: tcp://E:1",
        "f:5: workers[2].kv_replay: the same address as that of workers[0]: tcp://e:2",
    ]


def test_addresses_of_engines_that_could_not_be_used() -> None:
    """ZeroMQ takes a port that is too large for another one, and a wildcard cannot be asked."""
    assert wrong(
        "strategy: kvaware\n"
        "workers:\n"
        "- {url: http://a:1, kv_events: 'tcp://e:65536'}\n"
        "- {url: http://b:1, kv_events: 'tcp://*:0'}\n"
        "- {url: http://c:1, kv_events: 'tcp://*:65535', kv_replay: 'tcp://*:1'}\n"
        "- {url: http://d:1, kv_events: 'ipc:///run/e:99999'}\n"
    ) == [
        'f:3: workers[0].kv_events: "tcp://e:65536": the port must be 1 to 65535',
        'f:4: workers[1].kv_events: "tcp://*:0": the port must be 1 to 65535',
        "f:5: workers[2].kv_replay: tcp://*:1: the router asks there: write the engine's host",
    ]


def test_pools_are_told_apart() -> None:
    """Names and models are unique, and a worker in two pools is refused: each saw half its load."""
    assert wrong(
        "pools:\n"
        "- {name: p, models: [x, 'y*'], workers: [http://a:1]}\n"
        "- {name: p, models: ['y*'], workers: [http://a:1]}\n"
        "- {name: q, workers: [{url: http://a:1, name: a2}]}\n"
        "- {name: r, models: ['*'], workers: [{url: http://b:1, name: a2}]}\n"
    ) == [
        'f:3: pools[1].name: "p" is already the name of pools[0]',
        'f:3: pools[1].models[0]: "y*" is already routed to pools[0]',
        f"f:3: pools[1].workers[0]: the same address as pools[0].workers[0]: a:1{ONE_POOL}",
        f"f:4: pools[2].workers[0].url: the same address as pools[0].workers[0]: a:1{ONE_POOL}",
        'f:5: pools[3].models[0]: "*" is already routed to pools[2]',
        'f:5: pools[3].workers[0].name: "a2" is already the name of pools[2].workers[0]',
    ]


def test_endpoints_are_told_apart() -> None:
    """A name that is given twice could stand for two models."""
    assert wrong(
        "workers: [http://a:1]\n"
        "sagemaker:\n"
        "  endpoints:\n"
        "  - {name: e, model: m1}\n"
        "  - {name: e, model: m2}\n"
        "  - f\n"
        "  - f\n"
    ) == [
        'f:5: sagemaker.endpoints[1].name: "e" is already the name of sagemaker.endpoints[0]',
        'f:7: sagemaker.endpoints[3]: "f" is already the name of sagemaker.endpoints[2]',
    ]
