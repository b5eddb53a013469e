"""A settings file that is reloaded while a script changes it."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from router.fleet.build import CannotBuild
from router.reload import Reload, Source
from router.settings.files import Watch
from router.settings.model import Settings
from router.settings.types import Address

WORKERS = "workers: [http://10.0.0.1:8000]\n"
KEY = "auth: {keys: [{name: k, key: '${SOME_KEY}'}]}\n"
TLS = "tls: {certificate: one.pem, key: one.key}\n"


class Running:
    """A `Reload` with the settings that it has applied."""

    def __init__(self, folder: Path, text: str, listen: Address | None = None) -> None:
        self.file = folder / "w.yaml"
        self.file.write_text(WORKERS + text)
        self.given: list[Settings] = []
        self.refuses = ""
        source = Source(self.file, listen)
        self.watch = Watch([self.file])
        self.reload = Reload(source, self.watch, source.read(), poll_interval_s=0.01)

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
