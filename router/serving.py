"""One serving process: its door, its sockets, and settings that may change meanwhile."""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence

from router.app import create_app
from router.fleet.build import CannotBuild
from router.fleet.state import leave, take_over
from router.fleet.worker import Worker
from router.http.server import Server
from router.http.tls import DoorContext, door_context
from router.runtime import logs
from router.settings.files import check_chain
from router.settings.model import Settings
from router.settings.server import TlsSettings

log = logging.getLogger("warmroute.reload")

#: Seconds between two checks whether a removed worker has ended its last request.
FAREWELL_S = 0.2


class Serving:
    """Serves as the settings say, and follows their changes."""

    def __init__(self, settings: Settings, place: int | None = None) -> None:
        """`place` is this process's among several. Raises CannotBuild."""
        self._settings = settings
        self._place = place
        self.door = create_app(settings)
        take_over(self.door.fleet, settings.shutdown.state, place)
        self._tls = _context(settings)
        if self._tls is not None:
            self.door.metrics.add(self._tls.handshakes.metrics)
        self.server = Server(self.door, settings.shutdown, self._tls)
        self._farewells: set[asyncio.Task[None]] = set()
        self.at_rest: Callable[[], None] = _nothing
        """Called when all is answered, before the learned state is saved; it must not change
        after this."""

    async def run(
        self, listeners: Sequence[socket.socket], admin: Sequence[socket.socket] = ()
    ) -> None:
        """Serve until told to stop, shut down in order, and save the learned state."""
        try:
            await self.server.serve(listeners, admin)
        finally:
            for task in tuple(self._farewells):
                task.cancel()
            self.at_rest()
            state = self._settings.shutdown.state
            await asyncio.to_thread(leave, self.door.fleet, state, self._place)

    async def change(self, settings: Settings) -> None:
        """Apply other settings. Raises CannotBuild; then nothing has changed."""
        if settings.tls is not None:
            _check(settings.tls)
        left = await self.door.change(settings)
        self._show(settings.tls)
        self.server.ending = settings.shutdown
        if settings.logs != self._settings.logs:
            logs.set_up(settings.logs.level, settings.logs.format, self._place)
        self._settings = settings
        for worker in left:
            task = asyncio.create_task(self._see_off(worker))
            self._farewells.add(task)
            task.add_done_callback(self._farewells.discard)

    async def _see_off(self, worker: Worker) -> None:
        """Log when a removed worker may be stopped, and end its metric series then."""
        while worker.load.here:  # noqa: ASYNC110 - a load is plain numbers, without events
            await asyncio.sleep(FAREWELL_S)
        log.info("worker %s has left: its last request has ended", worker.name)
        if worker.name not in {other.name for other in self.door.fleet.workers}:
            self.door.metrics.forget(worker.name)

    def _show(self, tls: TlsSettings | None) -> None:
        """Use the certificates that the files hold now."""
        if self._tls is not None and tls is not None:
            try:
                self._tls.show(tls)
            except ValueError as error:  # they have changed since `_check`
                log.error("tls: %s", error)


def _nothing() -> None:
    """Do nothing."""


def _context(settings: Settings) -> DoorContext | None:
    try:
        return door_context(settings.tls) if settings.tls else None
    except ValueError as error:
        raise CannotBuild(f"tls: {error}") from None


def _check(tls: TlsSettings) -> None:
    """Check the certificate files before anything is changed. Raises CannotBuild."""
    try:
        check_chain(tls.certificate, tls.key)
    except ValueError as error:
        raise CannotBuild(f"tls: {error}") from None
