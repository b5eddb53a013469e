"""Fleets: many workers in one process."""

import socket
from collections.abc import Callable

import httpx
import pytest

from simulator.fleet import FleetThread
from simulator.settings import FleetSettings

Start = Callable[..., FleetThread]


def test_every_worker_has_its_own_ports_name_and_cache(start: Start) -> None:
    """Workers share nothing but the process."""
    fleet = start(workers=3)
    assert [worker.name for worker in fleet.workers] == ["sim-1", "sim-2", "sim-3"]
    assert len(set(fleet.urls)) == 3
    assert len({worker.kv_events for worker in fleet.workers}) == 3
    body = {"prompt": list(range(64)), "max_tokens": 1}
    for url in [*fleet.urls, fleet.urls[0]]:
        httpx.post(f"{url}/v1/completions", json=body).raise_for_status()
    hits = [worker.engine.totals.prefix_hits for worker in fleet.workers]
    assert hits == [48, 0, 0]


def after_a_free_one() -> socket.socket:
    """Listen on a port such that the one before it is free."""
    while True:
        taken = socket.create_server(("127.0.0.1", 0))
        try:
            socket.create_server(("127.0.0.1", taken.getsockname()[1] - 1)).close()
        except OSError:
            taken.close()
        else:
            return taken


def test_a_taken_port_is_named() -> None:
    """The error names the port, and no worker is left running."""
    with after_a_free_one() as taken:
        port = taken.getsockname()[1]
        fleet = FleetThread(FleetSettings(profile="toy", workers=2, port=port - 1))
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}"):
            fleet.start()
    assert not fleet.workers
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port - 1))


def serves_again() -> bool:
    """Start a fleet on the ports of one that has stopped.

    Returns False if another program took the port next to one of them.
    """
    settings = FleetSettings(profile="toy")
    with FleetThread(settings) as first:
        url = first.urls[0]
        kv = first.workers[0].kv_events
        httpx.get(f"{url}/health").raise_for_status()
    assert kv is not None
    again = FleetSettings(
        profile="toy", port=int(url.rsplit(":", 1)[1]), kv_port=int(kv.rsplit(":", 1)[1])
    )
    try:
        with FleetThread(again) as second:
            assert second.urls == [url]
            assert second.workers[0].kv_events == kv
    except OSError as error:
        if kv in str(error) or url.removeprefix("http://") in str(error):
            raise
        return False  # the next port, which another program has
    return True


def test_an_unknown_profile_stops_the_start() -> None:
    """The fleet does not start."""
    fleet = FleetThread(FleetSettings(profile="none"))
    with pytest.raises(ValueError, match="no speed profile"):
        fleet.start()


@pytest.mark.parametrize(
    ("settings", "word"),
    [({"workers": 0}, "worker"), ({"speed": 0}, "speed"), ({"models": ()}, "model")],
)
def test_an_impossible_fleet_is_refused(settings: dict[str, object], word: str) -> None:
    """The settings are rejected before anything starts."""
    with pytest.raises(ValueError, match=word):
        FleetSettings(**settings)  # type: ignore[arg-type]
