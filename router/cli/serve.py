"""The command `serve`: reads the settings and serves with one process or several."""

import asyncio
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from router import __version__, build_kind
from router.app import RouterServer
from router.cli.terminal import (
    Listen,
    Strategy,
    Workers,
    address_of,
    arguments,
    fail,
    is_file,
    tell,
)
from router.fleet.build import CannotBuild, build
from router.http.server import PortTaken, bind
from router.http.tls import Contexts
from router.kv.attach import refuse_lost_stores
from router.processes.supervisor import Processes
from router.reload import Reload, Source, check_multiprocess
from router.runtime import logs
from router.runtime.process import raise_descriptors, settle, signal_handlers
from router.settings.errors import SettingsError
from router.settings.files import Watch
from router.settings.model import Settings
from router.settings.types import Address
from strategies import registry

log = logging.getLogger("warmroute.processes")

FOR_OPERATORS = " for operators"
#: Tells the operator a URL that is served.
Announce = Callable[[str], None]
_EXAMPLE = "warmroute serve http://10.0.0.11:8000 http://10.0.0.12:8000"


def serve(
    urls: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="URL",
            help="The workers, such as http://10.0.0.11:8000, if there is no file.",
            show_default=False,
        ),
    ] = None,
    *,
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="The settings file, YAML, instead of URLs."),
    ] = None,
    strategy: Strategy = None,
    listen: Listen = None,
    processes: Annotated[
        int, typer.Option(min=1, help="Processes that share the port; each uses one core.")
    ] = 1,
    workers: Workers = None,
) -> None:
    """Serve as the front door of these workers, or of those in a file, until told to stop."""
    source = _source(urls or [], config, strategy, listen, workers)
    try:
        code = run(
            source,
            processes,
            lambda url: logs.announce(
                f"Warmroute {__version__} ({build_kind()}) listens on {url}", tell
            ),
        )
    except SettingsError as error:
        raise fail(str(error), 2) from None
    except ValueError as error:
        raise fail(f"--listen: {error}", 2) from None
    except (CannotBuild, PortTaken) as error:
        raise fail(str(error)) from None
    raise typer.Exit(code)


def _source(
    urls: list[str],
    config: Path | None,
    strategy: str | None,
    listen: str | None,
    workers: str | None,
) -> Source:
    """Return where the settings come from. Raises Exit with 2 if that is not clear."""
    if config is None and len(urls) == 1 and is_file(urls[0]):
        raise fail(f"{urls[0]} is a file: write --config {urls[0]}", 2)
    if config is None and not urls:
        raise fail(f"no workers: give their URLs, as in `{_EXAMPLE}`, or --config FILE", 2)
    if config is None:
        return Source(arguments(urls, strategy, listen, workers))
    if urls:
        raise fail(f"give either --config {config} or URLs: the file says who the workers are", 2)
    if strategy:
        raise fail(f"--strategy: {config} says it: write strategy: {strategy} there", 2)
    return Source(config, address_of(listen) if listen else None, workers)


def run(source: Source, count: int, announce: Announce) -> int:
    """Serve with `count` processes until told to stop; return the exit code.

    Raises SettingsError, ValueError if `--listen` does not fit, CannotBuild and PortTaken.
    """
    watch = Watch(source.own_files)  # before it is read, so that no later change is missed
    loaded = source.take()
    reload = Reload(source, watch, *loaded)
    return _alone(reload, announce) if count == 1 else _together(reload, count, announce)


def _alone(reload: Reload, announce: Announce) -> int:
    settings = reload.settings
    listener = bind(settings.listen)
    admin = [bind(settings.admin.listen)] if settings.admin.listen else []
    _begin_log(reload)
    raise_descriptors(settings.clients.connections)
    uvloop.run(refuse_lost_stores(settings))
    serving = RouterServer(settings)
    serving.door.metrics.add(reload.metrics)

    async def main() -> None:
        async def keep_up() -> None:
            await serving.server.started.wait()
            settle()
            await reload.run(serving.change)

        def stop() -> None:
            reloading.cancel()  # no reloads during shutdown
            serving.server.stop()

        reloading = asyncio.create_task(keep_up())
        with signal_handlers(stop, reload.now):
            announce(_url(settings, _bound(settings.listen, listener)))
            if settings.admin.listen:
                announce(_url(settings, _bound(settings.admin.listen, admin[0])) + FOR_OPERATORS)
            try:
                await serving.run([listener], admin)
            finally:
                reloading.cancel()
                await asyncio.gather(reloading, return_exceptions=True)

    uvloop.run(main())
    return 0


def _together(reload: Reload, count: int, announce: Announce) -> int:
    settings = reload.settings
    with ExitStack() as stack:
        listen = stack.enter_context(_kept(settings.listen))
        apart = settings.admin.listen
        admin = stack.enter_context(_kept(apart)) if apart else None
        _begin_log(reload)
        uvloop.run(refuse_lost_stores(settings))
        build(settings, Contexts())  # so that an error is reported once, not by every process
        check_multiprocess(settings)
        log_unshared_state(settings, count)
        processes = Processes(settings, count, listen, admin)
        processes.also(reload.metrics)

        async def main() -> int:
            def stop() -> None:
                for task in reloading:
                    task.cancel()
                processes.stop()

            def started() -> None:
                reloading.append(asyncio.create_task(reload.run(processes.change)))
                announce(_url(settings, listen))
                if admin:
                    announce(_url(settings, admin) + FOR_OPERATORS)

            reloading: list[asyncio.Task[None]] = []
            with signal_handlers(stop, reload.now):
                return await processes.run(started)

        return uvloop.run(main())


def _begin_log(reload: Reload) -> None:
    logs.set_up(reload.settings.logs.level, reload.settings.logs.format)
    reload.log_pools()
    reload.log_manifest_notes()
    reload.warn_unused()
    reload.look_at_certificate()


@contextmanager
def _kept(address: Address) -> Iterator[Address]:
    """Reserve a port while the block runs; yield its address. Raises PortTaken."""
    bind(address).close()  # fails if another server is there; SO_REUSEPORT below would join it
    with bind(address, shared=True, listen=False) as holder:
        yield _bound(address, holder)


def _bound(address: Address, listener: socket.socket) -> Address:
    """Return the address with the listener's actual port, in case it asks for port 0."""
    return Address(address.host, listener.getsockname()[1])


def _url(settings: Settings, address: Address) -> str:
    return f"{'https' if settings.tls else 'http'}://{address}"


def log_unshared_state(settings: Settings, count: int) -> None:
    """Log what each of `count` processes keeps for itself."""
    log.info(
        "%d processes share the port and tell each other what they send; each has its own queue,"
        " learned pace and ejections, and limits, clients.connections and strategy.memory hold for"
        " each process",
        count,
    )
    for pool in settings.all_pools():
        name = pool.strategy.name
        able = registry.make(name, dict(pool.strategy.options)).capabilities
        if able.reads_prompt and not able.hears_others:
            log.warning(
                "pool %s: each process tells the strategy %s only of its own requests: if it"
                " remembers prompts, a conversation finds its worker again while its client keeps"
                " the connection, otherwise one time in %d",
                pool.name,
                name,
                count,
            )
