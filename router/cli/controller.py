"""The command that runs the controller of a kvaware pool."""

from pathlib import Path
from typing import Annotated

import typer
import uvloop

from router.cli import controller_service as controller_command
from router.cli.terminal import ConfigFile, Workers, address_of, duration_of, fail, load, tell
from router.fleet.build import CannotBuild
from router.http import server
from router.kv.snapshots import CannotRestore
from router.runtime import logs


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
            controller_command.run(
                settings,
                address,
                snapshot,
                duration_of("--every", every),
                lambda url: logs.announce(f"Warmroute controller listens on {url}", tell),
            )
        )
    except controller_command.NotOnePool as error:
        raise fail(f"{config}: {error}", 2) from None
    except ValueError as error:
        raise fail(f"--listen: {error}", 2) from None
    except (CannotBuild, server.PortTaken, CannotRestore) as error:
        raise fail(str(error)) from None
