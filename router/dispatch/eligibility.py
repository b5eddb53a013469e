"""Which workers of a pool cannot answer a request, by what they have told of themselves.

Replicas of one model may differ: in their context length (`--max-model-len`), in the endpoints that
they serve, in whether they take images. Asked only where the workers of a pool do differ. What a
worker has not told is taken as possible.
"""

import re
from collections.abc import Mapping, Sequence
from math import inf
from typing import Final

from msgspec.structs import replace

from router.api.request import Endpoint, Request
from router.dispatch.needs import Needs, needed
from router.fleet.pool import Pool
from router.fleet.worker import Worker
from strategies.api import Prompt

#: What marks a part of a message as one of these media, in OpenAI's and Anthropic's form.
_MEDIA: Final = {
    "images": re.compile(rb'"type"\s*+:\s*+"(?:image|image_url|input_image)"'),
    "audio": re.compile(rb'"type"\s*+:\s*+"(?:audio_url|input_audio)"'),
}


def fitted(pool: Pool, endpoint: Endpoint, request: Request, prompt: Prompt, body: bytes) -> Prompt:
    """Return the prompt with the workers of the pool that cannot answer it."""
    if not pool.uneven:
        return prompt
    found = barred(pool, endpoint, request, prompt, body)
    return replace(prompt, barred=found) if found else prompt


def barred(
    pool: Pool, endpoint: Endpoint, request: Request, prompt: Prompt, body: bytes
) -> Mapping[str, str]:
    """Return the workers of the pool that cannot answer, each with the reason.

    Whether they are ready does not count: if those that can answer are away, the client should try
    again. If none can, those that come nearest are left to say what is wrong.
    """
    found: dict[str, str] = {}
    able = [worker for worker in pool.workers if prompt.model in worker.models]
    for one in (endpoint.path, *_media(able, body)):
        lacking = [worker for worker in able if one in worker.lacks]
        if len(lacking) < len(able):
            found |= {worker.name: f"it does not serve {one}" for worker in lacking}
            able = [worker for worker in able if worker not in lacking]
    limits = {worker: worker.longest(prompt.model) or inf for worker in able}
    different = set(limits.values())
    if len(different) > 1:
        needs = needed(endpoint, request, prompt, body, pool.prompts.estimates)
        least = _least(limits, needs)
        below = {
            limit: f"it takes {limit} tokens, and this needs {needs}"
            for limit in different
            if limit < least
        }
        found |= {worker.name: below[limit] for worker, limit in limits.items() if limit in below}
    return found


def _media(workers: Sequence[Worker], body: bytes) -> list[str]:
    """Return the media in a request that some of the workers do not take."""
    lacked = [kind for kind in _MEDIA if any(kind in worker.lacks for worker in workers)]
    return [kind for kind in lacked if kind[:5].encode() in body and _MEDIA[kind].search(body)]


def _least(limits: Mapping[Worker, float], needs: Needs) -> float:
    """Return the limit that a worker must have at least.

    An estimate decides only among workers that are there: it may be wrong.
    """
    here = [limit for worker, limit in limits.items() if worker.ready and not worker.draining]
    if all(limit < needs.surely for limit in limits.values()):
        return max(here, default=0.0)
    return needs.probably if any(limit >= needs.probably for limit in here) else needs.surely
