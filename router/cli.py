"""The command line. Exit codes: 0 well, 1 failed, 2 the input is wrong."""

from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console
from rich.table import Table

from router import __version__, settings_file
from router.settings import Settings
from router.units import Address

app = typer.Typer(
    name="warmroute",
    help="The front door for vLLM fleets that knows where the cache is warm.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
_out = Console()
_err = Console(stderr=True, highlight=False, soft_wrap=True)

ConfigFile = Annotated[Path, typer.Option("--config", "-c", help="The YAML file.")]


def main() -> None:
    """Run the command line."""
    app()


def _fail(message: str, code: int = 1) -> typer.Exit:
    _err.print(message, markup=False)
    return typer.Exit(code)


def _load(file: Path) -> Settings:
    try:
        return settings_file.load(file)
    except settings_file.SettingsError as error:
        raise _fail(str(error), 2) from None


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"warmroute {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, help="Print the version.")
    ] = False,
) -> None:
    """Route OpenAI requests to the vLLM worker that will answer soonest."""


@app.command()
def serve(
    config: ConfigFile,
    listen: Annotated[
        str | None, typer.Option(help="HOST:PORT to listen on, in place of the file's.")
    ] = None,
) -> None:
    """Open the front door and serve until told to stop."""
    from router import app as door
    from router import logs, server

    settings = _load(config)
    try:
        address = Address.parse(listen) if listen else settings.listen
        listener = server.bind(address)
    except (ValueError, server.PortTaken) as error:
        raise _fail(str(error)) from None
    logs.set_up(settings.logs)
    application = door.create_app(settings)
    port = listener.getsockname()[1]
    _err.print(f"Warmroute {__version__} listens on http://{Address(address.host, port)}")
    uvloop.run(server.server(application, settings).serve(sockets=[listener]))


@app.command()
def check(file: Annotated[Path, typer.Argument(help="The YAML file.")]) -> None:
    """Say everything that is wrong with a file, or everything that would be used."""
    settings = _load(file)
    table = Table("setting", "value", "from", box=None, pad_edge=False)
    for row in settings_file.describe(settings):
        table.add_row(row.path, row.value, row.source)
    _out.print(table)


@app.command()
def schema() -> None:
    """Print the JSON schema of the YAML file."""
    print(settings_file.schema_text(), end="")
