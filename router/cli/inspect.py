"""Commands that only inform: about a settings file, where a request would go, the schema."""

import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import time
from typing import Annotated

import typer
import uvloop
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from router.admin.explain import CannotExplain, WrongQuestion
from router.api.errors import Headers
from router.cli import explain as explain_told
from router.cli.check_live import check_live, rehearse
from router.cli.explain import explained_offline
from router.cli.terminal import (
    Ca,
    Listen,
    Strategy,
    Workers,
    address_of,
    arguments,
    fail,
    is_file,
    key_of,
    load,
    tell,
    trust_of,
    url_of,
)
from router.fleet.build import CannotBuild
from router.http.tls import complaint
from router.hyperpod.environment import OPTION, source_of
from router.hyperpod.loader import Loaded, take
from router.prompt.salts import Salts
from router.proxy.dry_run import Question
from router.reload import Source, idle
from router.runtime import logs
from router.sessions.ids import kept
from router.settings.errors import SettingsError
from router.settings.loader import Arguments
from router.settings.model import Settings
from router.settings.schema import describe, schema_text
from strategies.explain import Explanation

#: Width in columns of a table that must not be cut, if there is no terminal.
_WIDEST = 400


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
    settings, notes = _taken(source)
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
        _print(("setting", "value", "from"), [row for row in rows if every or row.told])
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


def _taken(source: Source) -> Loaded:
    """Read what is to be checked. Raises Exit with 2 if there are mistakes in it."""
    try:
        if isinstance(source.file, Arguments):
            return Loaded(source.file.settings(served=False), ())
        return source.take()
    except SettingsError as error:
        raise fail(str(error), 2) from None
    except ValueError as error:
        raise fail(f"--listen: {error}", 2) from None


def _file(told: Arguments) -> str:
    """Return a settings file to start from, with comments on what to do with it."""
    lines = [
        f"# The same as: warmroute serve {told.words()}",
        "# To serve it: warmroute serve --config FILE",
    ]
    if not told.listen.is_loopback:
        lines.append("# `openssl rand -hex 32` makes a key; `auth: none` would let everyone in.")
    return "\n".join([*lines, told.file() + "# warmroute check --live FILE asks the workers"])


def _again(source: Source) -> str:
    """Return the arguments that stand for the same settings."""
    if isinstance(source.file, Arguments):
        return source.file.words()
    told = source.workers if source.workers and source_of(source.workers) == OPTION else None
    return shlex.join([str(source.file), *((OPTION, told) if told else ())])


def _print(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")  # never cut: these values are what is used
    for row in rows:
        table.add_row(*map(escape, row))
    console = Console()
    (console if console.is_terminal else Console(width=_WIDEST)).print(table)


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


def explain(
    *,
    file: Annotated[Path, typer.Argument(help="The settings file, YAML.")],
    request: Annotated[Path, typer.Option(help="File with the JSON body of a request.")],
    url: Annotated[
        str | None,
        typer.Option(help="Ask the running router at this URL instead of the file alone."),
    ] = None,
    path: Annotated[
        str, typer.Option(help="The endpoint that the request is for.")
    ] = "/v1/chat/completions",
    api_key: Annotated[
        str | None, typer.Option(envvar="WARMROUTE_ADMIN_KEY", help="An operator's key.")
    ] = None,
    key: Annotated[
        str, typer.Option("--as", help="Name of its key, where keys have caches of their own.")
    ] = "",
    session: Annotated[
        str, typer.Option(help="Id of its session; with --url, as only a running router knows it.")
    ] = "",
    ca: Ca = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
    workers: Workers = None,
) -> None:
    """Show where a request would go and why, without sending it.

    With --url, the file is needed only for --session: it says which header names sessions.
    """
    headers = _session(file, workers, session, url) if session else []
    url = None if url is None else url_of(url)
    trust = trust_of(ca, url)
    asked = Question(path, _body(request), headers, key)
    with _saying_why_not():
        if url is None:
            found = _offline(file, workers, asked, str(request))
        else:
            found = explain_told.explained_by(
                url, asked, str(request), api_key=key_of(api_key), trust=trust
            )
    if as_json:
        print(explain_told.to_json(found))
    else:
        _print_explanation(found)


def _body(request: Path) -> bytes:
    """Return the body of a request. Raises Exit with 2."""
    try:
        return request.read_bytes()
    except OSError as error:
        raise fail(f"--request {request}: {error.strerror or error}", 2) from None


def _offline(file: Path, workers: str | None, asked: Question, name: str) -> Explanation:
    """Explain by the settings file alone. Raises Exit, CannotExplain, CannotBuild."""
    settings, _ = load(file, workers)
    if unknown := Salts(settings).unknown(asked.key):
        raise fail(f"--as: {unknown}", 2)
    return explained_offline(settings, asked.path, asked.body, name)


@contextmanager
def _saying_why_not() -> Iterator[None]:
    try:
        yield
    except CannotExplain as error:
        raise fail(str(error), 2 if isinstance(error, WrongQuestion) else 1) from None
    except CannotBuild as error:
        raise fail(str(error)) from None


def _print_explanation(found: Explanation) -> None:
    Console().print(explain_told.sentence(found))
    # As wide as needed: names may differ only at their ends.
    wide = Console(width=_WIDEST)
    if found.workers:
        wide.print(explain_told.table(found))
    wide.print(explain_told.others(found), end="")


def _session(file: Path, workers: str | None, name: str, url: str | None) -> Headers:
    """Return the header that names a session to the router at `url`. Raises Exit with 2."""
    if url is None:
        raise fail("--session: only a running router knows sessions: add --url", 2)
    if not name.strip(" \t"):
        raise fail("--session: an empty id names no session", 2)
    try:
        header = take(file, workers).settings.session.header
    except SettingsError as error:
        enough = "one with `session.header` as at the router, and any `workers`, is enough"
        raise fail(
            f"{error}\n--session: only its header is taken from {file}: {enough}", 2
        ) from None
    return [(header.encode(), kept(name.strip(" \t")).encode())]


def schema() -> None:
    """Print the JSON schema of the YAML file."""
    print(schema_text(), end="")
