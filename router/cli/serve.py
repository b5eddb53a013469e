"""The command that serves as the front door."""

from pathlib import Path
from typing import Annotated

import typer

from router import __version__
from router.cli.run import serve as run_serve
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
from router.fleet.build import CannotBuild
from router.http import server
from router.reload import Source
from router.runtime import logs
from router.settings.errors import SettingsError

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
        code = run_serve(
            source,
            processes,
            lambda url: logs.announce(f"Warmroute {__version__} listens on {url}", tell),
        )
    except SettingsError as error:
        raise fail(str(error), 2) from None
    except ValueError as error:
        raise fail(f"--listen: {error}", 2) from None
    except (CannotBuild, server.PortTaken) as error:
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
