"""The files that are watched: the settings file, and the certificates that it names."""

from pathlib import Path

import pytest

from router.reload import Source
from tests.reload.running import TLS, Running, eventually, going


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
