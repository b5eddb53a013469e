"""Reloading the settings file: applied as a whole, refused as a whole, or left for a restart."""

import itertools
from pathlib import Path
from time import time

import pytest

from router.settings.model import Settings
from router.settings.types import Address
from tests.reload.running import KEY, Running, eventually, going


def told(running: Running) -> dict[str, float]:
    """The metrics about the settings."""
    samples = [sample for metric in running.reload.metrics() for sample in metric.samples]
    return {sample.name.removeprefix("warmroute_settings_"): sample.value for sample in samples}


def test_what_waits_is_not_in_effect(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """While a change waits for a restart, the metrics show that the file is not in effect."""
    running = Running(folder, "listen: 127.0.0.1:1\n")
    caplog.set_level("INFO")

    async def script() -> None:
        running.write("listen: 127.0.0.1:2\n")
        await eventually(lambda: "waits for a restart" in caplog.text)
        assert told(running)["in_effect"] == 0
        running.write("listen: 127.0.0.1:1\n")
        await eventually(lambda: told(running)["in_effect"])

    going(running, script)


def test_what_has_no_effect_is_told_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """At the start, and again only when that is something else."""
    running = Running(folder, "session: {most: 7}\n")
    running.reload.warn_unused()
    caplog.set_level("INFO")

    async def script() -> None:
        running.write("session: {most: 8}\n")
        await eventually(lambda: "session.most: 7 → 8" in caplog.text)
        running.write("controller: http://c:1\n")
        await eventually(lambda: "controller: no pool has a strategy" in caplog.text)

    going(running, script)
    assert caplog.text.count("session: no pool has a strategy") == 1


def test_a_bad_file_and_then_a_good_one(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A bad file changes nothing; each problem is logged once with its line. A good one applies."""
    running = Running(folder, "")
    before = running.reload.settings
    caplog.set_level("INFO")

    async def script() -> None:
        running.write("limits: {n: none}\nlistne: x\n")
        assert told(running)["in_effect"] == 1
        since = told(running)["timestamp_seconds"]
        assert since == pytest.approx(time(), abs=60)
        await eventually(lambda: "settings in use are kept" in caplog.text)
        assert running.reload.settings is before
        assert told(running) == {"in_effect": 0, "timestamp_seconds": since}
        running.write("limits: {n: 7}\n")
        await eventually(lambda: running.given)
        await eventually(lambda: "settings: limits.n: 128 → 7" in caplog.text)
        assert told(running)["in_effect"] == 1
        assert told(running)["timestamp_seconds"] > since

    going(running, script)
    (given,) = running.given
    assert running.reload.settings is given
    for line in (
        "w.yaml:2: limits.n: ",
        "w.yaml:3: listne: unknown key",
        "settings in use are kept",
    ):
        assert caplog.text.count(line) == 1


def test_what_cannot_be_put_into_effect(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Settings that cannot be applied change nothing; a later reload tries again."""
    running = Running(folder, "")
    before = running.reload.settings
    running.refuses = "it cannot be"

    async def script() -> None:
        running.write("limits: {n: 7}\n")
        await eventually(lambda: "it cannot be; the settings in use are kept" in caplog.text)
        assert running.reload.settings is before
        running.refuses = ""
        running.reload.now()
        await eventually(lambda: running.given)

    going(running, script)
    assert running.reload.settings.limits.n == 7


def test_a_fault_of_ours_is_survived(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An unexpected error is logged, and the next file is read."""
    running = Running(folder, "")
    real = running.change

    async def broken(settings: Settings) -> None:
        if settings.limits.n == 7:
            raise RuntimeError("a fault")
        await real(settings)

    running.change = broken  # type: ignore[method-assign]

    async def script() -> None:
        running.write("limits: {n: 7}\n")
        await eventually(lambda: "a fault" in caplog.text)
        assert told(running)["in_effect"] == 0
        running.write("limits: {n: 8}\n")
        await eventually(lambda: running.given)

    going(running, script)
    assert running.reload.settings.limits.n == 8


def test_the_command_line_stays(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`--listen` stays in effect at a reload, and settings not allowed with it are refused."""
    running = Running(folder, KEY, Address("0.0.0.0", 8080))  # noqa: S104
    caplog.set_level("INFO")

    async def script() -> None:
        running.write(KEY + "listen: 127.0.0.1:9\nlimits: {n: 7}\n")
        await eventually(lambda: running.given)
        running.write("")
        await eventually(lambda: "can be reached from other machines" in caplog.text)

    going(running, script)
    assert running.reload.settings.listen == Address("0.0.0.0", 8080)  # noqa: S104
    assert "waits for a restart" not in caplog.text
    assert len(running.given) == 1


def test_a_signal_and_a_change_are_one(folder: Path) -> None:
    """A file read because of a signal is not read again because it has changed."""
    running = Running(folder, "")
    look, looks = running.watch.changed, itertools.count(1)
    seen = 0

    def counted() -> bool:
        nonlocal seen
        seen = next(looks)
        return look()

    running.watch.changed = counted  # type: ignore[method-assign]

    async def script() -> None:
        running.write("limits: {n: 7}\n")
        running.reload.now()
        await eventually(lambda: running.given)
        enough = seen + 5
        await eventually(lambda: seen > enough)

    going(running, script)
    assert len(running.given) == 1
