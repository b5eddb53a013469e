"""Reloading the settings file: applied as a whole, refused as a whole, or left for a restart."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path
from threading import current_thread, main_thread
from time import time

import pytest

from router import reload
from router.rebuild import CannotBuild
from router.reload import Reload, Source, tell, without_restart
from router.settings import Settings
from router.settings_diff import changes, needs_restart
from router.settings_file import Loaded
from router.units import Address
from router.watch import Watch
from tests.pems import write_pems

WORKERS = "workers: [http://10.0.0.1:8000]\n"
KEY = "auth: {keys: [{name: k, key: '${SOME_KEY}'}]}\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with certificates; also sets a key in the environment and polls fast."""
    monkeypatch.setenv("SOME_KEY", "0123456789abcdef")
    monkeypatch.setattr(reload, "LOOK_S", 0.01)
    write_pems(tmp_path)
    return tmp_path


def read(folder: Path, text: str, listen: Address | None = None) -> Settings:
    """Write a settings file with these lines, and read it."""
    (folder / "w.yaml").write_text(WORKERS + text)
    return Source(folder / "w.yaml", listen).read()


TLS = "tls: {certificate: one.pem, key: one.key}\n"


@pytest.mark.parametrize(
    ("before", "after", "waits"),
    [
        ("listen: 127.0.0.1:1\n", "listen: 127.0.0.1:2\n", "listen"),
        ("", TLS, "tls"),
        (TLS, "", "tls"),
        (TLS, TLS.replace("}", ", client_ca: both.pem}"), "tls.client_ca"),
        ("", "admin: {listen: '127.0.0.1:9'}\n", "admin.listen"),
    ],
)
def test_what_waits_for_a_restart(folder: Path, before: str, after: str, waits: str) -> None:
    """Addresses, TLS itself and client certificates wait for a restart; other changes do not."""
    old = read(folder, before)
    new = read(folder, after + "limits: {n: 7}\n")
    possible = without_restart(old, new)
    assert possible.limits.n == 7
    assert possible.model_copy(update={"limits": old.limits}) == old
    said = tell(old, possible, new)
    assert "limits.n: 128 → 7" in said
    rest = [one for one in said if one != "limits.n: 128 → 7"]
    assert rest
    assert all(one.startswith(waits) for one in rest)
    assert all(one.endswith("; waits for a restart") for one in rest)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("listen: 0.0.0.0:1\n" + KEY, "listen: 127.0.0.1:1\n"),
        ("listen: 0.0.0.0:1\n" + KEY + TLS, "listen: 0.0.0.0:1\nauth: none\n" + TLS[:-2]
         + ", client_ca: both.pem}\n"),
        ("listen: 0.0.0.0:1\n" + KEY, "listen: 0.0.0.0:1\nauth: none\n"
         "admin: {listen: '127.0.0.1:9'}\n"),
    ],
    ids=["loopback", "certificates", "operators"],
)  # fmt: skip
def test_no_door_opens_before_the_restart(folder: Path, before: str, after: str) -> None:
    """Looser keys that were written for a new address or for TLS wait for the restart with it."""
    old, new = read(folder, before), read(folder, after)
    possible = without_restart(old, new)
    assert possible.door_keys == old.door_keys
    assert possible.admin_keys == old.admin_keys
    assert possible.listen == old.listen
    said = tell(old, possible, new)
    assert any(one.startswith("auth: keys → ") for one in said)
    assert all(one.endswith("; waits for a restart") for one in said)


def test_keys_alone_do_not_wait(folder: Path) -> None:
    """Changed keys apply at once if nothing else needs a restart."""
    old, new = read(folder, KEY), read(folder, "")
    assert without_restart(old, new) == new
    assert tell(old, new, new) == ["auth: keys → everyone on this machine", "auth: key k removed"]


def test_certificates_do_not_wait(folder: Path) -> None:
    """Changed certificate files apply without a restart."""
    old, new = read(folder, TLS), read(folder, TLS.replace("one", "two"))
    assert without_restart(old, new) == new


def test_nothing_to_tell(folder: Path) -> None:
    """If nothing has changed, that is logged too."""
    old = read(folder, "")
    assert tell(old, old, read(folder, "# nothing\n")) == ["no changes"]


class Running:
    """A `Reload` with the settings that it has applied."""

    def __init__(self, folder: Path, text: str, listen: Address | None = None) -> None:
        self.file = folder / "w.yaml"
        self.file.write_text(WORKERS + text)
        self.given: list[Settings] = []
        self.refuses = ""
        source = Source(self.file, listen)
        self.watch = Watch([self.file])
        self.reload = Reload(source, self.watch, source.read())

    async def change(self, settings: Settings) -> None:
        if self.refuses:
            raise CannotBuild(self.refuses)
        self.given.append(settings)

    def write(self, text: str) -> None:
        """Replace the settings file, by a rename."""
        new = self.file.with_suffix(".new")
        new.write_text(WORKERS + text)
        new.replace(self.file)


def going(running: Running, script: Callable[[], Awaitable[None]]) -> None:
    """Run a script while the reload runs."""

    async def both() -> None:
        task = asyncio.create_task(running.reload.run(running.change))
        async with asyncio.timeout(20):
            await script()
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(both())


async def eventually(condition: Callable[[], object]) -> None:
    """Wait until the condition holds."""
    while not condition():  # noqa: ASYNC110 - what is waited for are lines of a log
        await asyncio.sleep(0.005)


def told(running: Running) -> dict[str, float]:
    """The metrics about the settings."""
    samples = [sample for metric in running.reload.metrics() for sample in metric.samples]
    return {sample.name.removeprefix("warmroute_settings_"): sample.value for sample in samples}


def test_requests_do_not_wait_for_the_list_of_changes(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In a large fleet it takes long, so threads make it."""
    running = Running(folder, "")
    caplog.set_level("INFO")
    threads = list[str]()

    def differences(old: Settings, new: Settings) -> list[str]:
        threads.append(current_thread().name)
        return changes(old, new)

    def restart(old: Settings, new: Settings) -> list[str]:
        threads.append(current_thread().name)
        return needs_restart(old, new)

    monkeypatch.setattr(reload, "changes", differences)
    monkeypatch.setattr(reload, "needs_restart", restart)

    async def script() -> None:
        running.write("limits: {n: 7}\n")
        await eventually(lambda: "limits.n: 128 → 7" in caplog.text)

    going(running, script)
    assert len(threads) == 3
    assert main_thread().name not in threads


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
    running.reload.say_what_is_idle()
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


def test_what_is_watched(folder: Path) -> None:
    """The settings file and all TLS files, for clients and workers, are watched, each once."""
    (folder / "w.yaml").write_text(
        "tls: {certificate: one.pem, key: one.key, client_ca: both.pem}\n"
        "workers:\n"
        "  - {url: 'https://10.0.0.1', tls: {ca: both.pem}}\n"
        "  - {url: 'https://10.0.0.2', tls: {certificate: two.pem, key: two.key}}\n"
    )
    source = Source(folder / "w.yaml")
    names = ["w.yaml", "both.pem", "one.key", "one.pem", "two.key", "two.pem"]
    assert source.files(source.read()) == [folder / name for name in names]


def test_certificates_are_watched(folder: Path) -> None:
    """A renewed certificate file is applied though the settings are the same."""
    running = Running(folder, TLS)

    async def script() -> None:
        for name in ("pem", "key"):
            (folder / f"one.{name}").write_text((folder / f"two.{name}").read_text())
        await eventually(lambda: running.given)
        assert running.given == [running.reload.settings]
        running.write(TLS.replace("one", "two"))
        await eventually(lambda: len(running.given) > 1)
        again = len(running.given)
        (folder / "two.pem").write_text((folder / "two.pem").read_text() + "\n")
        await eventually(lambda: len(running.given) > again)

    going(running, script)


@pytest.mark.parametrize("late", ["pem", "key"])
def test_a_certificate_that_comes_after_the_settings(
    folder: Path, caplog: pytest.LogCaptureFixture, late: str
) -> None:
    """Settings that are refused for a file that they name apply once the file is right."""
    running = Running(folder, TLS)
    wanted = (folder / f"two.{late}").read_text()
    (folder / f"two.{late}").write_text((folder / f"one.{late}").read_text())
    if late == "pem":
        (folder / "two.pem").unlink()

    async def script() -> None:
        running.write(TLS.replace("one", "two"))
        await eventually(lambda: "settings in use are kept" in caplog.text)
        assert not running.given
        (folder / f"two.{late}").write_text(wanted)
        await eventually(lambda: running.given)

    going(running, script)
    assert caplog.text.count("settings in use are kept") == 1


def test_a_certificate_that_comes_while_the_settings_are_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was missing when it was looked for; that it is there a moment later is a change."""
    running = Running(folder, TLS)
    wanted, take = (folder / "two.pem").read_text(), Source.take
    (folder / "two.pem").unlink()

    def taken(source: Source) -> Loaded:
        try:
            return take(source)
        finally:
            if not (folder / "two.pem").exists():
                (folder / "two.pem").write_text(wanted)

    monkeypatch.setattr(Source, "take", taken)

    async def script() -> None:
        running.write(TLS.replace("one", "two"))
        await eventually(lambda: running.given)

    going(running, script)


def test_a_certificate_that_is_renewed_after_it_could_not_be_used(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A certificate of settings that could not be applied is watched as well."""
    running = Running(folder, TLS)
    running.refuses = "it cannot be"

    async def script() -> None:
        running.write(TLS.replace("one", "two"))
        await eventually(lambda: "it cannot be; the settings in use are kept" in caplog.text)
        running.refuses = ""
        (folder / "two.pem").write_text((folder / "two.pem").read_text() + "\n")
        await eventually(lambda: running.given)

    going(running, script)
