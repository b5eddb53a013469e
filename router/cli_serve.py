"""The command that serves as the front door."""

from typing import Annotated

import typer

from router import __version__, logs, server, settings_file
from router.cli_terminal import ConfigFile, Workers, address_of, fail, tell
from router.rebuild import CannotBuild
from router.reload import Source
from router.serve import serve as run_serve


def serve(
    config: ConfigFile,
    listen: Annotated[
        str | None, typer.Option(help="HOST:PORT to listen on, instead of the file's.")
    ] = None,
    processes: Annotated[
        int, typer.Option(min=1, help="Processes that share the port; each uses one core.")
    ] = 1,
    workers: Workers = None,
) -> None:
    """Serve as the front door of the workers in the file, until told to stop."""
    source = Source(config, address_of(listen) if listen else None, workers)
    try:
        code = run_serve(
            source,
            processes,
            lambda url: logs.announce(f"Warmroute {__version__} listens on {url}", tell),
        )
    except settings_file.SettingsError as error:
        raise fail(str(error), 2) from None
    except ValueError as error:
        raise fail(f"--listen: {error}", 2) from None
    except (CannotBuild, server.PortTaken) as error:
        raise fail(str(error)) from None
    raise typer.Exit(code)
