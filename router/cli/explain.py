"""The command `explain`: where a request would go, by a running router or by a file alone.

With a file alone no worker is asked: every one counts as ready, idle and empty, so the result shows
how a prompt is read, how long it is estimated to be, and what it would cost.
"""

import ssl
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Annotated

import httpx
import msgspec
import typer
from rich.console import Console, Group, JustifyMethod
from rich.table import Table
from rich.text import Text

from router.admin.explain import (
    CannotExplain,
    WrongQuestion,
    endpoint_of,
    pools_for,
    sent_nowhere,
)
from router.api.endpoints import EXPLAIN
from router.api.errors import APIError, BadRequest, Headers, NoWorker, UnknownModel
from router.api.lenient_json import rewrite
from router.api.request import parse
from router.cli.terminal import Ca, Workers, fail, key_of, load, trust_of, url_of
from router.dispatch.eligibility import left_out, unable
from router.fleet.build import CannotBuild, build
from router.fleet.fleet import Fleet
from router.fleet.pool import Pool
from router.fleet.worker import ProbeState
from router.http.tls import Contexts
from router.hyperpod.loader import take
from router.prompt.salts import Salts
from router.proxy.dry_run import Question
from router.proxy.limits import Limits, refuse_engine_fields
from router.sessions.ids import kept
from router.settings.errors import SettingsError
from router.settings.model import Settings
from strategies.explain import Explanation, explain

#: Width in columns of a table that must not be cut: names may differ only at their ends.
MAX_WIDTH = 400
#: Seconds that a running router may take.
ANSWER_TIMEOUT_S = 30.0


def run_explain(
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
    question = Question(path, _body(request), headers, key)
    try:
        if url is None:
            explanation = _offline(file, workers, question, str(request))
        else:
            explanation = explained_by(
                url, question, str(request), api_key=key_of(api_key), trust=trust
            )
    except CannotExplain as error:
        raise fail(str(error), 2 if isinstance(error, WrongQuestion) else 1) from None
    except CannotBuild as error:
        raise fail(str(error)) from None
    if as_json:
        print(to_json(explanation))
    else:
        _print(explanation)


def _body(request: Path) -> bytes:
    """Return the body of a request. Raises Exit with 2."""
    try:
        return request.read_bytes()
    except OSError as error:
        raise fail(f"--request {request}: {error.strerror or error}", 2) from None


def _offline(file: Path, workers: str | None, question: Question, name: str) -> Explanation:
    """Explain by the settings file alone. Raises Exit, CannotExplain, CannotBuild."""
    settings, _ = load(file, workers)
    if unknown := Salts(settings).unknown(question.key):
        raise fail(f"--as: {unknown}", 2)
    return explain_offline(settings, question.path, question.body, name)


def _print(explanation: Explanation) -> None:
    Console().print(sentence(explanation))
    wide = Console(width=MAX_WIDTH)
    if explanation.workers:
        wide.print(table(explanation))
    wide.print(others(explanation), end="")


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


def explained_by(
    url: str, question: Question, name: str, *, api_key: str | None, trust: ssl.SSLContext | None
) -> Explanation:
    """Ask the router at `url`, which may end with `/v1`.

    `name` says where the body is from, for errors. `trust` is the context for https, by default
    one that trusts the system's roots. Raises CannotExplain.
    """
    fields = [(b"content-type", b"application/json"), *question.headers]
    if api_key:
        fields.append((b"authorization", b"Bearer %b" % api_key.encode()))
    try:
        answer = httpx.post(
            url.rstrip("/").removesuffix("/v1") + EXPLAIN,
            params={"path": question.path, "key": question.key}
            if question.key
            else {"path": question.path},
            content=question.body,
            headers=fields,
            timeout=ANSWER_TIMEOUT_S,
            verify=trust or ssl.create_default_context(),
            trust_env=False,
        )
    except (httpx.UnsupportedProtocol, httpx.InvalidURL):
        raise CannotExplain(f"{url} is not a URL: write http://host:port") from None
    except httpx.HTTPError as error:
        raise CannotExplain(f"{url} does not answer: {error}") from None
    if answer.status_code != 200:
        raise _refused(answer, url, name)
    try:
        return msgspec.json.decode(answer.content, type=Explanation)
    except msgspec.DecodeError as error:
        raise CannotExplain(f"{url} gave no explanation: {error}") from None


def _refused(answer: httpx.Response, url: str, name: str) -> CannotExplain:
    """Return the router's error; or the beginning of the body, if it is none."""
    try:
        why = msgspec.json.decode(answer.content, type=_Refusal).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        return CannotExplain(f"{url} answered {answer.status_code}: {answer.text[:500]}")
    if answer.status_code == httpx.codes.BAD_REQUEST:
        return WrongQuestion(f"{_OPTIONS.get(why.param or '', name)}: {why.message}")
    return CannotExplain(f"{url} answered {answer.status_code}: {why.message}")


#: Options on the command line, by what a running router calls them.
_OPTIONS = {"path": "--path", "key": "--as"}


class _Why(msgspec.Struct):
    message: str
    param: str | None = None


class _Refusal(msgspec.Struct):
    """An error in OpenAI's shape."""

    error: _Why


def to_json(explanation: Explanation) -> str:
    """Render as JSON."""
    return msgspec.json.format(msgspec.json.encode(explanation), indent=2).decode()


def sentence(explanation: Explanation) -> Group:
    """Render for people: what was asked, and why the first worker is first, or why none is."""
    model = explanation.model or "(no model)"
    where = f", pool {explanation.pool}" if explanation.pool else ""
    about = f"{model}{where}: {explanation.tokens} tokens, {explanation.blocks} blocks"
    return Group(Text(about), Text(f"{explanation.reason}: {explanation.words}"), Text())


_HEADINGS = ("worker", "held", "wait", "prefill", "price", "decode", "room", "home", "cost")


def table(explanation: Explanation) -> Table:
    """Return a table of the cost terms, in seconds, the best worker first.

    It has the workers alone if their costs were not compared.
    """
    costs_table = Table(box=None, pad_edge=False)
    costs = any(term.total is not None for term in explanation.workers)
    for heading in _HEADINGS if costs else _HEADINGS[:1]:
        justify: JustifyMethod = "left" if heading == "worker" else "right"
        costs_table.add_column(heading, justify=justify, no_wrap=True)
    for term in explanation.workers:
        seconds = (
            term.wait,
            term.prefill,
            term.price,
            term.decode,
            term.room,
            term.home,
            term.total,
        )
        cells = [_cell(term.held_tokens, "d"), *(_cell(value, ".3f") for value in seconds)]
        costs_table.add_row(Text(term.worker), *(cells if costs else ()))
    return costs_table


def _cell(value: float | None, how: str) -> str:
    """Return a number as text; empty if there is none."""
    return "" if value is None else format(value, how)


def others(explanation: Explanation) -> Group:
    """Render for people: which workers were left out, and why; empty if none was."""
    lines = [
        f"{entry.worker} is left out, {entry.state}: {entry.reason}"
        for entry in explanation.left_out
    ]
    if lines and explanation.workers:
        lines = ["", *lines]  # after the table
    return Group(*map(Text, lines))


def explain_offline(settings: Settings, path: str, body: bytes, name: str) -> Explanation:
    """Explain from settings alone; `name` says where the body is from, for errors.

    Raises WrongQuestion, CannotBuild.
    """
    try:
        endpoint = endpoint_of(path)
        with suppress(ValueError):  # no text: refused below
            body = rewrite(body).seen
        request = parse(endpoint, body, b"application/json")
        Limits(settings.limits).check(endpoint, request)
        pool = _told(build(settings, Contexts()), request.model)
        if not pool.engine_fields:
            refuse_engine_fields(request)
        prompt = pool.prompts.make(endpoint, request, body).prompt
    except APIError as error:
        what = "--path" if error.param == "path" else name
        raise WrongQuestion(f"{what}: {error.message}") from None
    model, most = prompt.model, settings.limits.in_flight
    workers = [worker for worker in pool.taking if Pool.serves(worker, model)]
    if not workers:
        lacking = NoWorker("Every worker that serves this model is draining.")
        return sent_nowhere([pool], prompt, unable(pool, prompt, most), lacking)
    decision = pool.strategy.rank(prompt, workers, monotonic())
    others = left_out(pool, prompt, decision, most)
    return explain(prompt, decision, left_out=others, pool=pool.name)


def _told(fleet: Fleet, model: str | None) -> Pool:
    """Return a model's pool as far as settings tell; an empty name fits every worker.

    Takes every worker as ready, and as serving the model if its models are not told. Raises
    BadRequest, UnknownModel.
    """
    pools = pools_for(fleet, model)
    if len(pools) > 1:
        raise BadRequest("The field `model` is missing, and the file has several pools.")
    workers = [worker for pool in pools for worker in pool.workers]
    for worker in workers:
        worker.become(ProbeState.READY, "not asked")
        worker.models = worker.models or {model or "": {}}
    if not any(Pool.serves(worker, model or "") for worker in workers):
        raise UnknownModel(model or "")
    return pools[0]
