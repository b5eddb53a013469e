"""What strategies save at the shutdown, and what the next run takes over."""

import asyncio
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import time

import pytest

from router.app import RouterServer
from router.fleet.fleet import Fleet
from router.fleet.pool import Pool
from router.fleet.state import MAX_AGE_S, leave, take_over
from router.settings.model import Settings
from strategies.api import Capabilities, NoOptions
from strategies.policies.least_load import LeastLoad
from strategies.policies.prefix_aware import PrefixAware
from tests.fleet.fleets import choice, fleet, prompt


@contextmanager
def no_room() -> Iterator[None]:
    """Let files have 100 bytes: for who writes one, the disk is full by then."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_half_a_file_is_not_left(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is of no use to anybody, and on a full disk it takes the room of others."""
    ours = fleet(workers=1)
    ours.pools[0].book(prompt("a prefix " * 200), choice(ours, 0), 0.0)
    with no_room():
        leave(ours, str(tmp_path), None)
    assert "could not be saved" in caplog.text
    assert list(tmp_path.iterdir()) == []
    leave(ours, str(tmp_path), None)
    (file,) = tmp_path.iterdir()
    assert file.name == "p.1.prefixes"
    assert file.stat().st_size > 100


def test_workers_that_are_gone_are_forgotten(tmp_path: Path) -> None:
    """Names change with every roll-out; each would keep a share of the memory for ever."""
    before, after = fleet(workers=3), fleet(workers=1)
    for number in range(3):
        before.pools[0].book(prompt(f"prefix {number} " * 200), choice(before, number), 0.0)
    leave(before, str(tmp_path), None)
    take_over(after, str(tmp_path), None)
    strategy = after.pools[0].strategy
    assert isinstance(strategy, PrefixAware)
    assert list(strategy.known_workers()) == ["w0"]


@pytest.mark.parametrize("fault", ["nonsense", "cut off", "old", "empty"])
def test_what_cannot_be_used_is_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    """The log says why, and the router starts as for the first time."""
    before, after = fleet(workers=1), fleet(workers=1)
    before.pools[0].book(prompt("a prefix " * 200), choice(before, 0), 0.0)
    leave(before, str(tmp_path), None)
    (file,) = tmp_path.iterdir()
    saved = file.read_bytes()
    contents = {"nonsense": b"nonsense", "cut off": saved[:-1], "old": saved, "empty": b""}
    file.write_bytes(contents[fault])
    if fault == "old":
        then = time() - 2 * MAX_AGE_S
        os.utime(file, (then, then))
    caplog.set_level("INFO")
    take_over(after, str(tmp_path), None)
    reason = "what was left is 120 minutes old" if fault == "old" else "not a prefix tree"
    assert f"pool p: it starts cold: {reason}" in caplog.text
    strategy = after.pools[0].strategy
    assert isinstance(strategy, PrefixAware)
    assert list(strategy.known_workers()) == []


class Broken(LeastLoad):
    """A strategy of others that leaves something for the next run, but fails at it."""

    capabilities = Capabilities(keeps_state=True)

    def dump_state(self) -> bytes:
        raise LookupError

    def restore_state(self, data: bytes) -> str:
        raise LookupError(data)


def test_a_strategy_that_fails_at_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The other pools are saved and restored all the same, and the router starts and stops."""
    broken = Pool("o", ["*"], [], Broken(NoOptions()))
    before, after = (Fleet([broken, *fleet(workers=1).pools]) for _ in range(2))
    ours = before.pools[1]
    ours.book(prompt("a prefix " * 200), choice(Fleet([ours]), 0), 0.0)
    leave(before, str(tmp_path), None)
    assert [file.name for file in tmp_path.iterdir()] == ["p.1.prefixes"]
    (tmp_path / "o.1.prefixes").write_bytes(b"some")
    caplog.set_level("INFO")
    take_over(after, str(tmp_path), None)
    assert caplog.text.count("pool o: its strategy raised an error") == 2
    assert caplog.text.count("pool p: ") == 1
    assert "pool p: it starts cold" not in caplog.text


def test_nothing_is_learned_while_it_is_left(tmp_path: Path) -> None:
    """`at_rest` stops all changes before a thread saves the learned state."""
    left_before: list[bool] = []
    settings = {"workers": ["http://127.0.0.1:1"], "shutdown": {"state": str(tmp_path)}}

    async def run() -> None:
        router = RouterServer(Settings.model_validate(settings))
        router.at_rest = lambda: left_before.append(any(tmp_path.iterdir()))
        serving = asyncio.create_task(router.run([]))
        await router.server.started.wait()
        router.server.stop(now=True)
        await serving

    asyncio.run(run())
    assert left_before == [False]
    assert [file.name for file in tmp_path.iterdir()] == ["default.1.prefixes"]
