"""Why a request would go where it would go, without sending it: of a file, or of a running router.

Offline nobody is asked: every worker is taken to be ready, idle and empty, so it tells how a prompt
is read, how long it is believed to be, and what it would cost.
"""

from collections.abc import Sequence
from time import monotonic
from typing import Protocol

import httpx
import msgspec
from rich.console import Group, JustifyMethod
from rich.table import Table
from rich.text import Text

from router.errors import BadRequest, DoorError, UnknownModel
from router.fleet import Fleet
from router.openai import ENDPOINTS, Endpoint, Request, parse
from router.pool import Pool
from router.rebuild import build
from router.settings import Settings
from router.tls import Contexts
from router.worker import Worker
from strategies.base import Decision, Prompt
from strategies.explain import Explanation, Waits, explain

#: Where a running router answers it, with `?path=` for the endpoint that the body is for.
PATH = "/explain"
#: Seconds that a running router may take.
PATIENCE_S = 30.0


class Decides(Protocol):
    """A running router, as far as it is asked here."""

    def would(
        self, pool: Pool, prompt: Prompt, workers: Sequence[Worker]
    ) -> tuple[Decision, Waits]:
        """What would be decided, and what the request would wait for first."""

    def as_from(self, endpoint: Endpoint, request: Request, key: str, asker: str) -> None:
        """Read a request as one that came with the key of that name. Raises BadRequest."""


class CannotExplain(Exception):
    """Says in a sentence what is in the way."""


async def explained(
    fleet: Fleet, router: Decides, path: str, body: bytes, *, key: str = "", asker: str = ""
) -> Explanation:
    """Decide on `body`, meant for the endpoint at `path`, and place nothing. Raises DoorError.

    `key` is the name of the one it would come with, where keys have caches of their own; `asker`
    that of the one who wants to know.
    """
    endpoint = _endpoint(path)
    request = parse(endpoint, body, b"application/json")
    router.as_from(endpoint, request, key, asker)
    pool, request.model, workers = fleet.route(request.model)
    asked = pool.prompts.asked.get(request.model)
    if asked is None:
        prompt = _read(pool, endpoint, request, body)
    else:
        prompt = (await pool.prompts.ask_uncounted(endpoint, request, body, asked)).prompt
    if pool.consult is not None and prompt.blocks:
        await pool.consult(prompt, [worker.name for worker in workers])
    if asked is not None or pool.consult is not None:  # as it is by now
        pool, _, workers = fleet.route(request.model)
    return explain(prompt, *router.would(pool, prompt, workers), pool=pool.name)


def explained_offline(settings: Settings, path: str, body: bytes, name: str) -> Explanation:
    """The same by settings alone; `name` is where the body is from. Raises CannotExplain,
    CannotBuild."""
    try:
        endpoint = _endpoint(path)
        request = parse(endpoint, body, b"application/json")
        fleet = build(settings, Contexts())
        pool = fleet.pools[0]
        if request.model:
            found = [pool for pool in fleet.pools if fleet.answers_for(request.model, pool)]
            if not found:
                raise UnknownModel(request.model)
            pool = found[0]
        prompt = _read(pool, endpoint, request, body)
        decision = pool.strategy.rank(prompt, pool.workers, monotonic())
        return explain(prompt, decision, pool=pool.name)
    except DoorError as error:
        what = "--path" if error.param == "path" else name
        raise CannotExplain(f"{what}: {error.message}") from None


def explained_by(
    url: str, path: str, body: bytes, api_key: str | None, key: str = ""
) -> Explanation:
    """Ask the router at `url`, as `explained`. Raises CannotExplain."""
    fields = {"content-type": "application/json"}
    if api_key:
        fields["authorization"] = f"Bearer {api_key}"
    try:
        answer = httpx.post(
            url.rstrip("/") + PATH,
            params={"path": path, "key": key} if key else {"path": path},
            content=body,
            headers=fields,
            timeout=PATIENCE_S,
            trust_env=False,
        )
    except (httpx.UnsupportedProtocol, httpx.InvalidURL):
        raise CannotExplain(f"{url} is not a URL: write http://host:port") from None
    except httpx.HTTPError as error:
        raise CannotExplain(f"{url} does not answer: {error}") from None
    if answer.status_code != 200:
        raise CannotExplain(f"{url} answered {answer.status_code}: {_said(answer)}")
    try:
        return msgspec.json.decode(answer.content, type=Explanation)
    except msgspec.DecodeError as error:
        raise CannotExplain(f"{url} gave no explanation: {error}") from None


def _said(answer: httpx.Response) -> str:
    """Return what an error says, where it is one of a router's."""
    try:
        return msgspec.json.decode(answer.content, type=_Refusal).error.message
    except (msgspec.DecodeError, UnicodeDecodeError):
        return answer.text[:500]


class _Why(msgspec.Struct):
    message: str


class _Refusal(msgspec.Struct):
    """An error in OpenAI's shape."""

    error: _Why


def _endpoint(path: str) -> Endpoint:
    endpoint = ENDPOINTS.get(path)
    if endpoint is None or endpoint.form:
        known = ", ".join(path for path, endpoint in ENDPOINTS.items() if not endpoint.form)
        raise BadRequest(f"{path!r} is no endpoint to explain; there are {known}.", param="path")
    return endpoint


def _read(pool: Pool, endpoint: Endpoint, request: Request, body: bytes) -> Prompt:
    prompts = pool.prompts
    made = prompts.make if prompts.keyed else prompts.made  # the former does not count it
    return made(endpoint, request, body).prompt


def to_json(explanation: Explanation) -> str:
    """For machines."""
    return msgspec.json.format(msgspec.json.encode(explanation), indent=2).decode()


def sentence(explanation: Explanation) -> Group:
    """For people: what was asked, and why the first worker is first."""
    model = explanation.model or "(no model)"
    where = f", pool {explanation.pool}" if explanation.pool else ""
    about = f"{model}{where}: {explanation.tokens} tokens, {explanation.blocks} blocks"
    return Group(Text(about), Text(f"{explanation.reason}: {explanation.words}"), Text())


def table(explanation: Explanation) -> Table:
    """Return the terms, in seconds, the best worker first."""
    found = Table(box=None, pad_edge=False)
    headings = ("worker", "held", "wait", "prefill", "price", "decode", "room", "home", "cost")
    for heading in headings:
        justify: JustifyMethod = "left" if heading == "worker" else "right"
        found.add_column(heading, justify=justify, no_wrap=True)
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
        cells = (f"{value:.3f}" for value in seconds)
        found.add_row(Text(term.worker), str(term.held_tokens), *cells)
    return found
