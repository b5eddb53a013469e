"""Which workers of a pool cannot answer a request, by what they have told of themselves.

Replicas of one model may differ: in their context length (`--max-model-len`), in the endpoints that
they serve, in whether they take images. Asked only where the workers of a pool do differ. What a
worker has not told is taken as possible.

Prompts that are longer than their model takes: the worker refuses such a prompt, or cuts it.

How long a context a request needs: prompt and answer, as engines add them.

Why workers of a pool are out of the question for a request.
"""

import re
from collections.abc import Mapping, Sequence
from math import ceil, inf, isfinite
from time import monotonic
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from router.api.endpoints import Endpoint, Prompted
from router.api.messages import entries, is_list
from router.api.request import Request
from router.fleet.pool import Pool
from router.fleet.worker import Availability, Worker
from router.prompt.prompts import Estimates
from router.runtime.threads import BYTES, rest
from strategies.api import NO_BLOCKS, Decision, Prompt
from strategies.explain import LeftOut

#: A length that was only estimated may be wrong by this factor.
ESTIMATE_FACTOR: Final = 2
#: A field with which a client asks to have a prompt cut, such as `truncate_prompt_tokens`.
_CUTS: Final = re.compile(rb'"truncat\w*"\s*+:\s*+(?!null|false|"disabled")')
#: Bytes that such a field may extend beyond a slice.
_MAX_FIELD_BYTES: Final = 256


def cuts(body: bytes) -> bool:
    """Whether the client asks to have a prompt cut."""
    for start in range(0, len(body), BYTES):
        if _CUTS.search(body, start, start + BYTES + _MAX_FIELD_BYTES):
            return True
        rest()
    return False


def within(
    prompt: Prompt, workers: Sequence[Worker], body: bytes, *, cut: bool | None = None
) -> Prompt:
    """Return the prompt as it occupies one of these workers: no longer than the model takes.

    One that is certainly too long is refused at once (unless the client asks to have it cut, with a
    field in `body`), so it counts as one token. Otherwise a few of them would look like minutes of
    work, for which others are held. Where the length is not that of one text, nothing is certain.

    One that is cut has no keys: most often its end is kept (vLLM's `truncate_prompt_tokens`), so
    what is computed has no beginning in common with what others computed, whatever the whole has.
    `cut` is what `cuts` says of the body, if that is known.
    """
    if not (prompt.counted or (prompt.estimated and prompt.keys)):
        return prompt
    longest = 0
    for worker in workers:
        limit = worker.longest(prompt.model)
        if limit is None or prompt.tokens - prompt.further_tokens <= limit:
            return prompt
        longest = max(longest, limit)
    if not longest or prompt.further:  # (each of several prompts may be short enough)
        return prompt
    if cuts(body) if cut is None else cut:
        return replace(prompt, tokens=longest, keys=(), blocks=NO_BLOCKS, ids=b"", estimated=False)
    if prompt.tokens > (1 if prompt.counted else ESTIMATE_FACTOR) * longest:
        return replace(
            prompt,
            tokens=1,
            too_long=prompt.tokens,
            keys=(),
            blocks=NO_BLOCKS,
            ids=b"",
            estimated=False,
            counted=False,
        )
    return replace(prompt, tokens=longest, estimated=False)


#: A field with which a client has its prompt cut: to so many tokens, or to what the model takes.
_CUT: Final = re.compile(rb'"truncat(?:e_prompt_tokens"\s*+:\s*+(-?\d{1,9})|ion"\s*+:\s*+"auto")')
#: Tokens of a completion whose length the client does not limit (vLLM's and SGLang's protocol).
_COMPLETION: Final = 16


class Needs(NamedTuple):
    """How long a context a request needs, in tokens: prompt and answer."""

    surely: float
    probably: float
    """As far as the prompt's length is known."""

    def __str__(self) -> str:
        about = "" if self.surely == self.probably else "about "
        return f"{about}{self.probably:.0f}"


def needed(
    endpoint: Endpoint, request: Request, prompt: Prompt, body: bytes, estimates: Estimates
) -> Needs:
    """Return how long a context a request needs, each of its prompts by itself.

    vLLM refuses a prompt that leaves no room for all of `max_tokens` (`TokenizeParams` in
    vllm/renderers/params.py), and SGLang does too. Without it, the answer needs one token.
    """
    answer = _answer(endpoint, request)
    if b'"truncat' in body and (cut := _CUT.search(body)):
        kept = max(0, int(cut[1] or 0)) + answer
        return Needs(kept, kept)
    raw = {Prompted.COMPLETION: request.prompt, Prompted.INPUT: request.input}
    given = raw.get(endpoint.prompted, msgspec.Raw())
    if is_list(given):
        tokens, exact = _longest(given, estimates.bytes_per_token)
        return Needs(answer + (tokens if exact else tokens // ESTIMATE_FACTOR), answer + tokens)
    tokens = prompt.tokens
    least = tokens if prompt.counted else tokens // ESTIMATE_FACTOR if prompt.estimated else 0
    return Needs(answer + least, answer + tokens)


def _answer(endpoint: Endpoint, request: Request) -> float:
    """Return how many tokens the engine keeps free for the answer."""
    if not endpoint.answers or endpoint.prompted is Prompted.NOTHING:
        return 0
    match endpoint.prompted:
        case Prompted.CHAT:
            limit = request.max_completion_tokens
            limit = request.max_tokens if limit is None else limit
        case Prompted.RESPONSES:
            limit = request.max_output_tokens
        case Prompted.COMPLETION:
            limit = _COMPLETION if request.max_tokens is None else request.max_tokens
        case _:
            limit = request.max_tokens
    return max(1, _number(limit))


def _number(value: object) -> float:
    """Return what an engine reads as a number, also `7.0` and `"7"`; 0 for anything else."""
    try:
        number = float(value) if isinstance(value, str | int | float) else 0.0
    except (ValueError, OverflowError):
        return 0
    return number if isfinite(number) else 0


def _longest(raw: msgspec.Raw, bytes_per_token: float) -> tuple[int, bool]:
    """Return the tokens of the longest of several prompts, and whether they were counted.

    They are texts or lists of token ids; a single list of ids is one prompt. 0 if they are neither.
    """
    given = bytes(raw)
    inner = given[1:64].lstrip()
    if inner[:1] == b"[":
        lists = (ids.strip(b", \t\r\n[") for ids in given.split(b"]"))
        return max(ids.count(b",") + 1 for ids in lists), True
    if inner[:1].isdigit():
        return given.count(b",") + 1, True
    texts = (entries(raw) or ()) if inner[:1] == b'"' else ()
    return ceil(max(map(len, texts), default=0) / bytes_per_token), False


#: What marks a part of a message as one of these media, in OpenAI's and Anthropic's form.
_MEDIA: Final = {
    "images": re.compile(rb'"type"\s*+:\s*+"(?:image|image_url|input_image)"'),
    "audio": re.compile(rb'"type"\s*+:\s*+"(?:audio_url|input_audio)"'),
}


def fitted(pool: Pool, endpoint: Endpoint, request: Request, prompt: Prompt, body: bytes) -> Prompt:
    """Return the prompt with the workers of the pool that cannot answer it."""
    if not pool.uneven:
        return prompt
    excluded = barred(pool, endpoint, request, prompt, body)
    return replace(prompt, barred=excluded) if excluded else prompt


def barred(
    pool: Pool, endpoint: Endpoint, request: Request, prompt: Prompt, body: bytes
) -> Mapping[str, str]:
    """Return the workers of the pool that cannot answer, each with the reason.

    Whether they are ready does not count: if those that can answer are away, the client should try
    again. If none can, those that come nearest are left to say what is wrong.
    """
    reasons: dict[str, str] = {}
    able = [worker for worker in pool.workers if prompt.model in worker.models]
    for ability in (endpoint.path, *_media(able, body)):
        lacking = [worker for worker in able if ability in worker.lacks]
        if len(lacking) < len(able):
            reasons |= {worker.name: f"it does not serve {ability}" for worker in lacking}
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
        reasons |= {worker.name: below[limit] for worker, limit in limits.items() if limit in below}
    return reasons


def _media(workers: Sequence[Worker], body: bytes) -> list[str]:
    """Return the media in a request that some of the workers do not take."""
    lacked = [kind for kind in _MEDIA if any(kind in worker.lacks for worker in workers)]
    return [kind for kind in lacked if kind[:5].encode() in body and _MEDIA[kind].search(body)]


def _least(limits: Mapping[Worker, float], needs: Needs) -> float:
    """Return the limit that a worker must have at least.

    An estimate decides only among workers that are there: it may be wrong.
    """
    here = [limit for worker, limit in limits.items() if worker.takes_new]
    if all(limit < needs.surely for limit in limits.values()):
        return max(here, default=0.0)
    return needs.probably if any(limit >= needs.probably for limit in here) else needs.surely


#: State and reason of a worker that could have been compared.
_UNRANKED = "unranked", "the pool's strategy did not rank it"
#: In these states a worker takes nothing, though its probes succeed; in others it is asked last.
_OUT = frozenset((Availability.EJECTED, Availability.DRAINING))


def left_out(pool: Pool, prompt: Prompt, decision: Decision, most: int) -> list[LeftOut]:
    """Return the workers that were not compared; each may have `most` requests in flight."""
    compared = {candidate.worker.name for candidate in decision.candidates}
    others = (worker for worker in pool.workers if worker.name not in compared)
    return [LeftOut(worker.name, *(_why(worker, prompt, most) or _UNRANKED)) for worker in others]


def unable(pool: Pool, prompt: Prompt, most: int) -> list[LeftOut]:
    """Return the workers that could not take the request now."""
    reasons = ((worker.name, _why(worker, prompt, most)) for worker in pool.workers)
    return [LeftOut(name, *why) for name, why in reasons if why]


def _why(worker: Worker, prompt: Prompt, most: int) -> tuple[str, str] | None:
    state, reason = worker.availability(monotonic())
    if not worker.ready or state in _OUT:
        return state.value, reason
    if not Pool.serves(worker, prompt.model):
        return "other", f"it does not serve {prompt.model!r}"
    if (lacking := prompt.barred.get(worker.name)) is not None:
        return "unable", lacking
    here = worker.load.here
    if here < most:
        return None
    return "full", f"it has {here} requests in flight; `limits.in_flight` is {most}"
