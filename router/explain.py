"""Explains where a request would go and why, without sending it.

The basis is a running router or only a settings file. Offline, no worker is asked: every one counts
as ready, idle and empty, so the result shows how a prompt is read, how long it is estimated to be,
and what it would cost.
"""

from collections.abc import Sequence
from time import monotonic
from typing import Protocol

from router.errors import BadRequest, DoorError, UnknownModel
from router.fleet import Fleet
from router.limits import Limits
from router.openai import ENDPOINTS, Endpoint, Request, parse
from router.pool import Pool
from router.rebuild import build
from router.settings import Settings
from router.tls import Contexts
from router.worker import Worker
from strategies.base import Decision, Prompt
from strategies.explain import Explanation, Waits, explain

#: Path of this on a running router; `?path=` names the endpoint that the body is meant for.
PATH = "/explain"


class Decides(Protocol):
    """The parts of a running router that are used here."""

    def would(
        self, pool: Pool, prompt: Prompt, workers: Sequence[Worker]
    ) -> tuple[Decision, Waits]:
        """Return what would be decided, and what the request would wait for first."""

    def as_from(self, endpoint: Endpoint, request: Request, key: str, asker: str) -> None:
        """Treat a request as if it came with the key named `key`. Raises BadRequest."""


class CannotExplain(Exception):
    """There is no explanation; the message is a sentence that says why."""


async def explained(
    fleet: Fleet, router: Decides, path: str, body: bytes, *, key: str = "", asker: str = ""
) -> Explanation:
    """Decide on `body`, meant for the endpoint at `path`, and book nothing. Raises DoorError.

    `key` names the key that the request would come with, if keys have caches of their own; `asker`
    names the key of the caller.
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
    if asked is not None or pool.consult is not None:  # the fleet may have changed meanwhile
        pool, _, workers = fleet.route(request.model)
    return explain(prompt, *router.would(pool, prompt, workers), pool=pool.name)


def explained_offline(settings: Settings, path: str, body: bytes, name: str) -> Explanation:
    """Explain from settings alone; `name` says where the body is from, for errors.

    Raises CannotExplain, CannotBuild.
    """
    try:
        endpoint = _endpoint(path)
        request = parse(endpoint, body, b"application/json")
        Limits(settings.limits).check(endpoint, request)
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
    made = prompts.make if prompts.keyed else prompts.made  # `make` does not count in metrics
    return made(endpoint, request, body).prompt
