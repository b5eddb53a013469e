"""The command `controller`: the index of one pool as a service of its own.

It runs the fleet, its probes and its index without the front door, from the same settings file.
"""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
import uvicorn
import uvloop
from fastapi import FastAPI

from controller.events.source import EventSource
from controller.kv_memory import KvMemory
from controller.service.server import create_app
from router.cli.terminal import ConfigFile, Workers, address_of, duration_of, fail, load, tell
from router.fleet.build import CannotBuild, build
from router.fleet.fleet import Fleet
from router.fleet.inquiries import Inquiries
from router.fleet.probes import Health
from router.http.server import PortTaken, bind
from router.http.tls import Contexts
from router.kv.attach import Memories
from router.kv.metrics import ControllerMetrics
from router.kv.snapshots import CannotRestore, Snapshots
from router.runtime import logs
from router.runtime.process import signal_handlers
from router.settings.model import Settings
from router.settings.types import Address

#: Seconds that requests under way may take to end once it is told to stop. Without an end a client
#: that hangs in the middle of one would keep the last snapshot from being written.
ENDING_S = 3
#: Seconds until an engine in a snapshot whose stream is not followed again is forgotten; at most
#: twice as many.
CLAIM_S = 300.0


def run_controller(
    config: ConfigFile,
    listen: Annotated[
        str, typer.Option(help="HOST:PORT of the HTTP API; its keys are those of `auth`.")
    ] = "127.0.0.1:8090",
    snapshot: Annotated[
        Path | None,
        typer.Option(help="File the index is read from at the start and written to at the end."),
    ] = None,
    every: Annotated[
        str, typer.Option(help="How often the snapshot is written in between.")
    ] = "5m",
    workers: Workers = None,
) -> None:
    """Run the index of a kvaware pool by itself, for several routers to ask."""
    settings, _ = load(config, workers)
    try:
        address = address_of(listen)
        uvloop.run(
            run(
                settings,
                address,
                snapshot,
                duration_of("--every", every),
                lambda url: logs.announce(f"Warmroute controller listens on {url}", tell),
            )
        )
    except NotOnePool as error:
        raise fail(f"{config}: {error}", 2) from None
    except ValueError as error:
        raise fail(f"--listen: {error}", 2) from None
    except (CannotBuild, PortTaken, CannotRestore) as error:
        raise fail(str(error)) from None


class NotOnePool(CannotBuild):
    """The settings do not have exactly one pool that a controller can serve."""


async def run(
    settings: Settings,
    listen: Address,
    snapshot: Path | None,
    every: float,
    announce: Callable[[str], None],
) -> None:
    """Serve until told to stop; write a snapshot `every` so many seconds, and at the end.

    Raises CannotBuild, CannotRestore, PortTaken, ValueError.
    """
    settings = settings.listening_on(listen).model_copy(update={"controller": None})
    logs.set_up(settings.logs.level, settings.logs.format)
    fleet = build(settings, Contexts())
    inquiries = Inquiries()
    memories = Memories(fleet, settings, inquiries)
    memory = _only(memories)
    snapshots = Snapshots(memory, snapshot) if snapshot is not None else None
    if snapshots is not None:
        snapshots.restore()
    listener = bind(listen)
    app = _app(settings, memories, memory, snapshots)
    health = Health(fleet, settings.health, inquiries, lambda worker, _: memories.notice(worker))
    memories.start()
    tasks = [asyncio.create_task(_let_go(memory, fleet))]
    if snapshots is not None:
        tasks.append(asyncio.create_task(snapshots.keep_writing(every)))
    try:
        await health.start()
        announce(_url(listen, listener))
        await _serve(app, listener)
    finally:
        for task in tasks:
            task.cancel()
        await health.stop()
        await memories.stop()
        for worker in fleet.workers:
            worker.upstream.close()
        if snapshots is not None and not await snapshots.write():
            raise CannotRestore(f"{snapshot}: the index could not be written down")


def _app(
    settings: Settings, memories: Memories, memory: KvMemory, snapshots: Snapshots | None
) -> FastAPI:
    """Return the paths of the service, over an index and the subscriptions that feed it."""

    async def follow(source: EventSource, endpoint: str | None, replay: str | None) -> None:
        if endpoint is not None:
            memories.subscriber.follow(source, endpoint, replay)

    async def leave(source: EventSource) -> None:
        await memories.subscriber.leave([source])

    keys = {key.name: key.key.get_secret_value() for key in settings.client_keys}
    series = ControllerMetrics(memories, snapshots)
    return create_app(memory, follow, leave, keys, requests=series.requests, series=series.text)


async def _serve(app: FastAPI, listener: socket.socket) -> None:
    """Answer until a signal says to stop."""
    config = uvicorn.Config(
        app,
        log_config=None,
        lifespan="off",
        access_log=False,
        timeout_graceful_shutdown=ENDING_S,
    )
    server = _Server(config)
    with signal_handlers(partial(setattr, server, "should_exit", True), _nothing):
        await server.serve([listener])


async def _let_go(memory: KvMemory, fleet: Fleet) -> None:
    """Forget, until cancelled, engines of a snapshot whose streams are not followed any more.

    Names change with every roll-out, and an engine that is gone does not say so. Workers in the
    settings file are never forgotten: one that is only away may come back as it was.
    """
    workers = frozenset(worker.name for worker in fleet.workers)
    before: frozenset[str] = frozenset()
    while True:
        await asyncio.sleep(CLAIM_S)
        absent = {name for name in memory.absent() if name.partition("\0")[0] not in workers}
        memory.forget_absent(before & absent)
        before = frozenset(absent)


class _Server(uvicorn.Server):
    """A server without signal handlers: uvicorn's would exit before the snapshot is written."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture no signals."""
        yield


def _nothing() -> None:
    """Ignore the signal to reload: there is nothing to reload."""


def _only(memories: Memories) -> KvMemory:
    served = [memory for _, memory in memories.pools()]
    if len(served) != 1:
        raise NotOnePool(
            f"a controller serves one pool with the strategy kvaware, and there are {len(served)}"
        )
    return served[0]


def _url(listen: Address, listener: socket.socket) -> str:
    return f"http://{Address(listen.host, listener.getsockname()[1])}"
