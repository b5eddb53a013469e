"""The command `controller`: the memory of one pool as a service of its own.

It is the fleet, its probes and its memory without the door: the same file describes it.
"""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import uvicorn

from controller.memory import Memory
from controller.server import serve
from controller.snapshot import BadSnapshot, dump, restore
from controller.source import Mark, Source
from router import logs
from router.fleet import Worker
from router.health import Health
from router.inquiry import Inquiries
from router.memories import Memories
from router.rebuild import CannotBuild, build
from router.server import bind
from router.settings import Settings
from router.signals import obeying
from router.tls import Contexts
from router.units import Address


class CannotRestore(Exception):
    """The snapshot cannot be taken over, or none written; says why in a sentence."""


async def run(
    settings: Settings, listen: Address, snapshot: Path | None, announce: Callable[[str], None]
) -> None:
    """Serve until told to stop. Raises CannotBuild, CannotRestore, PortTaken, ValueError."""
    settings = settings.listening_on(listen).model_copy(update={"controller": None})
    logs.set_up(settings.logs)
    fleet = build(settings, Contexts())
    inquiries = Inquiries()
    memories = Memories(fleet, settings, inquiries)
    memory = _only(memories)
    marks = _restored(memory, snapshot)

    def notice(worker: Worker, back: bool) -> None:
        del back
        memories.notice(worker)

    async def follow(source: Source, endpoint: str | None, replay: str | None) -> None:
        if endpoint is not None:
            memories.subscriber.follow(source, endpoint, replay)

    async def leave(source: Source) -> None:
        await memories.subscriber.leave([source])

    listener = bind(listen)
    keys = {key.name: key.key.get_secret_value() for key in settings.door_keys}
    app = serve(memory, follow, leave, keys)
    health = Health(fleet, settings.health, inquiries, notice)
    memory.marks.update(marks)
    memories.start()
    try:
        await health.start()
        announce(_url(listen, listener))
        config = uvicorn.Config(app, log_config=None, lifespan="off", access_log=False)
        server = _Server(config)
        with obeying(partial(setattr, server, "should_exit", True), _nothing):
            await server.serve([listener])
    finally:
        await health.stop()
        await memories.stop()
        for worker in fleet.workers:
            worker.upstream.close()
        if snapshot is not None:
            held = {source.name: source.mark() for source in memory.all_sources()}
            await asyncio.to_thread(_write, snapshot, dump(memory.index, held))


class _Server(uvicorn.Server):
    """Leaves signals to us: uvicorn's own would end the process before the snapshot is written."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def _nothing() -> None:
    """There is nothing to read anew."""


def _only(memories: Memories) -> Memory:
    found = [memory for _, memory in memories.pools()]
    if len(found) != 1:
        raise CannotBuild(
            f"a controller serves one pool with the strategy kvaware, and there are {len(found)}"
        )
    return found[0]


def _restored(memory: Memory, snapshot: Path | None) -> dict[str, Mark]:
    if snapshot is None:
        return {}
    try:
        with _beside(snapshot).open("wb"):  # now, and not only when there is an index to lose
            pass
        _beside(snapshot).unlink()
        if not snapshot.exists():
            return {}
        return restore(memory.index, snapshot.read_bytes())
    except (BadSnapshot, OSError) as error:
        raise CannotRestore(f"{snapshot}: {error}") from None


def _write(file: Path, data: bytes) -> None:
    """Never leave half of one."""
    fresh = _beside(file)
    fresh.write_bytes(data)
    fresh.replace(file)


def _beside(file: Path) -> Path:
    return file.with_name(f"{file.name}.new")


def _url(listen: Address, listener: socket.socket) -> str:
    return f"http://{Address(listen.host, listener.getsockname()[1])}"
