"""The command line. Exit codes: 0 well, 1 failed, 2 the input is wrong."""

from typing import Annotated

import typer

from router import __version__
from router.cli_serve import run_controller, serve
from router.cli_tell import check, explain, schema
from router.cli_try import replay, run_demo, simulate

app = typer.Typer(
    name="warmroute",
    help="The front door for vLLM fleets that knows where the cache is warm.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


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


app.command()(serve)
app.command()(check)
app.command("controller")(run_controller)
app.command()(explain)
app.command()(schema)
app.command("demo")(run_demo)
app.command()(replay)
app.command()(simulate)
