"""The command line. Exit codes: 0 success, 1 failure, 2 wrong input."""

from collections.abc import Sequence
from importlib import import_module
from typing import Annotated

import typer

from router import __version__, build_kind

#: The module of each command. Only the requested one is loaded: a server would keep the others in
#: memory for as long as it runs.
COMMANDS = {
    "serve": "router.cli.serve:serve",
    "check": "router.cli.check:check",
    "explain": "router.cli.explain:run_explain",
    "demo": "router.cli.demo:run_demo",
    "simulate": "router.cli.simulate:simulate",
    "replay": "router.cli.replay:replay",
    "controller": "router.cli.controller_service:run_controller",
    "schema": "router.cli.check:schema",
}


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"warmroute {__version__}, {build_kind()}")
        raise typer.Exit


def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, help="Print the version.")
    ] = False,
) -> None:
    """Route OpenAI requests to the vLLM worker that will answer soonest."""


def app(words: Sequence[str]) -> typer.Typer:
    """Return the application for a command line of these words.

    It has only the command that they begin with, or else all commands.
    """
    commands = typer.Typer(
        name="warmroute",
        help="The front door for vLLM fleets that knows where the cache is warm.",
        epilog="To begin: warmroute serve http://10.0.0.11:8000 http://10.0.0.12:8000",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    commands.callback()(root)
    first = words[0] if words else ""
    for name in (first,) if first in COMMANDS else COMMANDS:
        module, _, function = COMMANDS[name].partition(":")
        commands.command(name)(getattr(import_module(module), function))
    return commands
