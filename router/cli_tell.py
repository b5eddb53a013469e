"""Commands that only inform: about a settings file, where a request would go, the schema."""

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

from router import explain_told, logs, settings_file
from router.certificate import complaint
from router.check_live import check_live
from router.cli_consoles import out
from router.cli_terminal import Ca, Workers, fail, key_of, load, tell, trust_of, url_of
from router.errors import Headers
from router.explain import CannotExplain, Question, WrongQuestion
from router.explain_offline import explained_offline
from router.rebuild import CannotBuild
from router.rehearsal import rehearse
from router.salts import Salts
from router.sessions.ids import kept
from router.settings import LogSettings, Settings
from router.settings_idle import idle
from strategies.explain import Explanation

#: Width in columns of a table that must not be cut, if there is no terminal.
_WIDEST = 400


def check(
    file: Annotated[Path, typer.Argument(help="The settings file, YAML.")],
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
    explain_mapping: Annotated[
        bool,
        typer.Option(
            "--explain-mapping", help="Show what each field of a HyperPod manifest becomes."
        ),
    ] = False,
    workers: Workers = None,
) -> None:
    """Show every mistake in a file, or every setting that would be used."""
    settings, notes = load(file, workers)
    if settings.tls and (words := complaint(settings.tls.certificate, time())):
        tell(f"{file}: {words}")
    for words in idle(settings):
        tell(f"{file}: {words}")
    if live:
        raise typer.Exit(_check_live(settings, ask=ask))
    if explain_mapping and not notes:
        raise fail(f"{file} is not a HyperPod manifest: there is no mapping to explain", 2)
    if explain_mapping:
        _print(("field", "value", "becomes", ""), [(*note[:3], note.fate.value) for note in notes])
    if reason := uvloop.run(rehearse(settings)):
        raise fail(f"{file}: {reason}")
    if not explain_mapping:
        _print(("setting", "value", "from"), settings_file.describe(settings))


def _print(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")  # never cut: these values are what is used
    for row in rows:
        table.add_row(*map(escape, row))
    (out if out.is_terminal else Console(width=_WIDEST)).print(table)


def _check_live(settings: Settings, *, ask: bool) -> int:
    """Check the live fleet and print what every worker says; return the exit code."""
    logs.set_up(LogSettings(level="error"))
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
    out.print(explain_told.sentence(found))
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
        header = settings_file.take(file, workers).settings.session.header
    except settings_file.SettingsError as error:
        enough = "one with `session.header` as at the router, and any `workers`, is enough"
        raise fail(
            f"{error}\n--session: only its header is taken from {file}: {enough}", 2
        ) from None
    return [(header.encode(), kept(name.strip(" \t")).encode())]


def schema() -> None:
    """Print the JSON schema of the YAML file."""
    print(settings_file.schema_text(), end="")
