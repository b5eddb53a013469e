"""How long a context a request needs, and prompts that are longer than their model takes.

A worker refuses such a prompt, or cuts it.
"""

import re
from collections.abc import Sequence
from math import ceil, isfinite
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from router.estimates import Estimates
from router.messages import entries, is_list
from router.openai import Endpoint, Prompted, Request
from router.worker import Worker
from strategies.base import NO_BLOCKS, Prompt

#: A length that was only estimated may be wrong by this factor.
ROUGHLY: Final = 2
#: A field with which a client asks to have a prompt cut, such as `truncate_prompt_tokens`.
_CUTS: Final = re.compile(rb'"truncat(?!ion_side)\w*"\s*+:\s*+(?!null|false|"disabled")')

#: The same where it says to how many tokens; below 0: to what the model takes.
_CUT_TO: Final = re.compile(rb'"truncate_prompt_tokens"\s*+:\s*+(-?\d{1,9})')
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
    if to := _CUT_TO.search(body):
        kept = max(0, int(to[1])) + answer
        return Needs(kept, kept)
    if _CUTS.search(body):
        return Needs(answer, answer)
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
    inner = given[1:].lstrip()
    if inner[:1] == b"[":
        lists = (one.strip(b", \t\r\n[") for one in given.split(b"]"))
        return max(one.count(b",") + 1 for one in lists), True
    if inner[:1].isdigit():
        return given.count(b",") + 1, True
    texts = (entries(raw) or ()) if inner[:1] == b'"' else ()
    return ceil(max(map(len, texts), default=0) / bytes_per_token), False


def within(prompt: Prompt, workers: Sequence[Worker], body: bytes) -> Prompt:
    """Return the prompt as it occupies one of these workers: no longer than the model takes.

    One that is certainly too long is refused at once (unless the client asks to have it cut, with a
    field in `body`), so it counts as one token. Otherwise a few of them would look like minutes of
    work, for which others are held. Where the length is not that of one text, nothing is certain.

    One that is cut has no keys: most often its end is kept (vLLM's `truncate_prompt_tokens`), so
    what is computed has no beginning in common with what others computed, whatever the whole has.
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
    if _CUTS.search(body):
        return replace(prompt, tokens=longest, keys=(), blocks=NO_BLOCKS, ids=b"", estimated=False)
    if prompt.tokens > (1 if prompt.counted else ROUGHLY) * longest:
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
