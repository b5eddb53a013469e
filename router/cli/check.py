"""The commands `check` and `schema`: what a settings file sets, and what may stand in one."""

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from time import time
from typing import Annotated

import typer
import uvloop
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from router.cli.check_live import check_live, rehearse
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
from router.http.tls import complaint
from router.hyperpod.environment import OPTION, source_of
from router.hyperpod.loader import Loaded
from router.reload import Source, idle
from router.runtime import logs
from router.settings.errors import SettingsError
from router.settings.loader import Arguments
from router.settings.model import Settings
from router.settings.schema import describe, schema_text

#: Width in columns of a table that must not be cut, if there is no terminal.
MAX_WIDTH = 400


def check(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE|URL",
            help="The settings file, YAML. Or the workers, as for `serve`: prints a file to start"
            " from, which does the same.",
        ),
    ],
    *,
    live: Annotated[
        bool,
        typer.Option("--live", help="Ask the workers: do they answer, do tokenizers agree?"),
    ] = False,
    ask: Annotated[
        bool,
        typer.Option(
            "--ask/--no-ask",
            help="With --live, have each worker compute short prompts with answers of one token,"
            " to see whether it reports cached tokens, events and chunks, and to compare block"
            " names.",
        ),
    ] = True,
    every: Annotated[bool, typer.Option("--all", help="Show the defaults too.")] = False,
    explain_mapping: Annotated[
        bool,
        typer.Option(
            "--explain-mapping", help="Show what each field of a HyperPod manifest becomes."
        ),
    ] = False,
    strategy: Strategy = None,
    listen: Listen = None,
    workers: Workers = None,
) -> None:
    """Show every mistake in a file, or what it sets; of URLs, a file to start from."""
    source = _source(words, strategy, listen, workers)
    settings, notes = _load(source)
    file = source.file if isinstance(source.file, Path) else "command line"
    if settings.tls and (problem := complaint(settings.tls.certificate, time())):
        tell(f"{file}: {problem}")
    for problem in idle(settings):
        tell(f"{file}: {problem}")
    if live:
        raise typer.Exit(_check_live(settings, ask=ask))
    if explain_mapping and not notes:
        raise fail(f"{file} is not a HyperPod manifest: there is no mapping to explain", 2)
    if explain_mapping:
        _print(("field", "value", "becomes", ""), [(*note[:3], note.fate.value) for note in notes])
    if reason := uvloop.run(rehearse(settings)):
        raise fail(f"{file}: {reason}")
    if isinstance(source.file, Arguments) and not every:
        print(_file(source.file))
        return
    if every or not explain_mapping:
        rows = describe(settings)
        _print(("setting", "value", "from"), [row for row in rows if every or row.is_set])
        if not every:
            print("all other settings have their defaults: --all shows them")
    print(f"warmroute check --live {_again(source)} asks the workers")


def _source(
    words: Sequence[str], strategy: str | None, listen: str | None, workers: str | None
) -> Source:
    """Return what is to be checked. Raises Exit with 2 if that is not clear."""
    if len(words) > 1 or (":" in words[0] and not is_file(words[0])):
        return Source(arguments(words, strategy, listen, workers))
    if strategy:
        raise fail(f"--strategy: {words[0]} says it: write strategy: {strategy} there", 2)
    return Source(Path(words[0]), address_of(listen) if listen else None, workers)


def _load(source: Source) -> Loaded:
    """Read what is to be checked. Raises Exit with 2 if there are mistakes in it."""
    try:
        if isinstance(source.file, Arguments):
            return Loaded(source.file.settings(served=False), ())
        return source.take()
    except SettingsError as error:
        raise fail(str(error), 2) from None
    except ValueError as error:
        raise fail(f"--listen: {error}", 2) from None


def _file(given: Arguments) -> str:
    """Return a settings file to start from, with comments on what to do with it."""
    lines = [
        f"# The same as: warmroute serve {given.words()}",
        "# To serve it: warmroute serve --config FILE",
    ]
    if not given.listen.is_loopback:
        lines.append("# `openssl rand -hex 32` makes a key; `auth: none` would let everyone in.")
    return "\n".join([*lines, given.file() + "# warmroute check --live FILE asks the workers"])


def _again(source: Source) -> str:
    """Return the arguments that stand for the same settings."""
    if isinstance(source.file, Arguments):
        return source.file.words()
    workers = source.workers if source.workers and source_of(source.workers) == OPTION else None
    return shlex.join([str(source.file), *((OPTION, workers) if workers else ())])


def _print(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")  # never cut: these values are what is used
    for row in rows:
        table.add_row(*map(escape, row))
    console = Console()
    (console if console.is_terminal else Console(width=MAX_WIDTH)).print(table)


def _check_live(settings: Settings, *, ask: bool) -> int:
    """Check the live fleet and print what every worker says; return the exit code."""
    logs.set_up("error")
    try:
        lines, well = uvloop.run(check_live(settings, ask=ask))
    except CannotBuild as error:
        raise fail(str(error)) from None
    for line in lines:
        print(line)
    return 0 if well else 1


def schema() -> None:
    """Print the JSON schema of the YAML file."""
    print(schema_text(), end="")
