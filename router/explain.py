"""Why a request would go where it would go, without sending it: of a file, or of a running router.

Offline nobody is asked: every worker is taken to be ready, idle and empty, so it tells how a prompt
is read, how long it is believed to be, and what it would cost.
"""

from collections.abc import Sequence
from time import monotonic
from typing import Protocol

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
