"""How long a context a request needs: prompt and answer, as engines add them."""

import re
from math import ceil, isfinite
from typing import Final, NamedTuple

import msgspec

from router.api.messages import entries, is_list
from router.api.request import Endpoint, Prompted, Request
from router.dispatch.lengths import ROUGHLY
from router.prompt.estimates import Estimates
from strategies.api import Prompt

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
        return Needs(answer + (tokens if exact else tokens // ROUGHLY), answer + tokens)
    tokens = prompt.tokens
    least = tokens if prompt.counted else tokens // ROUGHLY if prompt.estimated else 0
    return Needs(answer + least, answer + tokens)


def _answer(endpoint: Endpoint, request: Request) -> float:
    """Return how many tokens the engine keeps free for the answer."""
    if not endpoint.answers or endpoint.prompted is Prompted.NOTHING:
        return 0
    match endpoint.prompted:
        case Prompted.CHAT:
            asked = request.max_completion_tokens
            asked = request.max_tokens if asked is None else asked
        case Prompted.RESPONSES:
            asked = request.max_output_tokens
        case Prompted.COMPLETION:
            asked = _COMPLETION if request.max_tokens is None else request.max_tokens
        case _:
            asked = request.max_tokens
    return max(1, _number(asked))


def _number(value: object) -> float:
    """Return what an engine reads as a number, also `7.0` and `"7"`; 0 for anything else."""
    try:
        found = float(value) if isinstance(value, str | int | float) else 0.0
    except (ValueError, OverflowError):
        return 0
    return found if isfinite(found) else 0


def _longest(raw: msgspec.Raw, bytes_per_token: float) -> tuple[int, bool]:
    """Return the tokens of the longest of several prompts, and whether they were counted.

    They are texts or lists of token ids; a single list of ids is one prompt. 0 if they are neither.
    """
    given = bytes(raw)
    inner = given[1:64].lstrip()
    if inner[:1] == b"[":
        lists = (one.strip(b", \t\r\n[") for one in given.split(b"]"))
        return max(one.count(b",") + 1 for one in lists), True
    if inner[:1].isdigit():
        return given.count(b",") + 1, True
    texts = (entries(raw) or ()) if inner[:1] == b'"' else ()
    return ceil(max(map(len, texts), default=0) / bytes_per_token), False
