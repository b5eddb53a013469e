"""Prompts that are longer than their model takes: the worker refuses such a prompt, or cuts it."""

import re
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from router.fleet.worker import Worker
from router.runtime.slices import BYTES, rest
from strategies.api import NO_BLOCKS, Prompt

#: A length that was only estimated may be wrong by this factor.
ROUGHLY: Final = 2
#: A field with which a client asks to have a prompt cut, such as `truncate_prompt_tokens`.
_CUTS: Final = re.compile(rb'"truncat\w*"\s*+:\s*+(?!null|false|"disabled")')
#: Bytes that such a field may extend beyond a slice.
_LONGEST: Final = 256


def cuts(body: bytes) -> bool:
    """Whether the client asks to have a prompt cut."""
    for start in range(0, len(body), BYTES):
        if _CUTS.search(body, start, start + BYTES + _LONGEST):
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
