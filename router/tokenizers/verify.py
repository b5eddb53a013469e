"""Whether a worker makes the same tokens as the router, and if not, where they first differ."""

import asyncio
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from router.fleet.inquiries import Inquiries, NoAnswer
from router.fleet.worker import Worker
from router.observe.models import Shown
from router.rendering.folder import TOKENIZER
from router.rendering.probes import IMAGE, NO_TOOLS, TOOLS, answers, head_answer
from router.rendering.tokens import ID_BYTES, LoadedTokenizer
from router.runtime.threads import aside
from router.tokenizers.worker_tokenizer import (
    NoTokenizer,
    PromptRefused,
    leaves_out,
    tokenize,
    worker_answers,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer

#: Seconds that our own answers, or the description of a difference, may take.
OUR_ANSWERS_TIMEOUT_S = 30.0
#: Tokens shown before the first one that differs.
_TOKENS_SHOWN_BEFORE = 8


class Agreement(StrEnum):
    """What is known of a worker's tokens."""

    AGREES = "agrees"
    UNVERIFIED = "unverified"
    """The worker cannot be asked, or has not been asked yet."""
    DIFFERS = "differs"


class DifferenceStatus(Shown):
    """The first token that a worker makes differently."""

    probe: str
    """Which of our texts."""
    index: int
    before: str
    """The text before that token."""
    ours: int | None
    theirs: int | None
    ours_text: str
    theirs_text: str

    def __str__(self) -> str:
        here, there = (
            "the end" if token is None else f"{token} {text!r}"
            for token, text in ((self.ours, self.ours_text), (self.theirs, self.theirs_text))
        )
        place = f'probe "{self.probe}", token {self.index} after {self.before!r}'
        return f"{place}: {here} here, {there} there"


@dataclass(frozen=True)
class Verdict:
    """The result of comparing one worker's tokens for one model."""

    state: Agreement
    why: str
    difference: DifferenceStatus | None = None
    media: bool = False
    """The tokens before an image agree too."""
    left_out: bool | None = False
    """Whether tools are left out of prompts with `tool_choice: none`; None: not known."""


def first_difference(ours: Mapping[str, bytes], theirs: Mapping[str, bytes]) -> str | None:
    """Return the name of the first probe whose tokens differ.

    Only probes that both have are compared. One that we cannot express or that the worker refuses
    says nothing, because such a request is keyed by its text, or refused.
    """
    return next((name for name in ours if theirs.get(name, ours[name]) != ours[name]), None)


def describe(probe: str, ours: bytes, theirs: bytes, path: Path | None) -> DifferenceStatus:
    """Describe where tokens differ, with texts if `path` has a `tokenizer.json`; takes a second.

    The text of the worker's id is ours, which may not be what the worker means by it.
    """
    mine, its = array("I", ours), array("I", theirs)
    pairs = enumerate(zip(mine, its, strict=False))
    index = next((place for place, (a, b) in pairs if a != b), min(len(mine), len(its)))
    tokenizer = _tokenizer(path)

    def text(ids: Sequence[int]) -> str:
        return tokenizer.decode(list(ids), skip_special_tokens=False) if tokenizer and ids else ""

    return DifferenceStatus(
        probe=probe,
        index=index,
        before=text(mine[max(0, index - _TOKENS_SHOWN_BEFORE) : index]),
        ours=mine[index] if index < len(mine) else None,
        theirs=its[index] if index < len(its) else None,
        ours_text=text(mine[index : index + 1]),
        theirs_text=text(its[index : index + 1]),
    )


def _tokenizer(path: Path | None) -> "Tokenizer | None":
    from tokenizers import Tokenizer  # noqa: PLC0415 - takes 5 MB; loaded by now

    try:
        return Tokenizer.from_file(str(path / TOKENIZER)) if path else None
    except Exception:  # noqa: BLE001 - it raises plain Exceptions; no text then
        return None


class ExpectedTokens:
    """What workers are compared with: our tokens, or those of one worker if we have none."""

    def __init__(
        self,
        inquiries: Inquiries,
        tokenizer: LoadedTokenizer | None,
        workers: Sequence[Worker],
        models: Sequence[str],
        turns: asyncio.Semaphore,
    ) -> None:
        """`turns` limits how many sources compute our tokens at once, as those threads hold up
        others."""
        self.tokenizer = tokenizer
        self.answers: Mapping[str, bytes] = {}
        """Ids by the probe's name."""
        self.head = b""
        """Ids before an image, if known."""
        self._inquiries = inquiries
        self._workers = workers
        self._models = models
        self._turns = turns

    async def prepare(self) -> None:
        """Get the tokens to compare with; none if neither we nor a worker can tell.

        Raises TimeoutError if ours take too long.
        """
        if self.tokenizer is not None:
            exact = self.tokenizer.exact
            async with self._turns:
                self.answers = await aside(lambda: answers(exact), OUR_ANSWERS_TIMEOUT_S)
                self.head = await aside(lambda: head_answer(exact), OUR_ANSWERS_TIMEOUT_S)
            return
        for worker in self._workers:
            for model in [name for name in self._models if name in worker.models][:1]:
                with suppress(NoTokenizer, NoAnswer):
                    self.answers = await worker_answers(self._inquiries, worker, model)
                    return


async def verify_worker(
    reference: ExpectedTokens,
    inquiries: Inquiries,
    worker: Worker,
    model: str,
    *,
    choosing: bool = False,
) -> Verdict:
    """Ask a worker, and compare; if `choosing`, also check `tool_choice: none`, which takes a
    chat."""
    if not reference.answers:
        return Verdict(Agreement.UNVERIFIED, "there is nothing to compare with")
    try:
        theirs = await worker_answers(inquiries, worker, model, list(reference.answers))
        if first_difference(reference.answers, theirs) is not None:
            # Templates may write the date, and midnight may have been between the two.
            await reference.prepare()
            theirs = await worker_answers(inquiries, worker, model, list(reference.answers))
    except (NoTokenizer, NoAnswer) as lacking:
        return Verdict(Agreement.UNVERIFIED, str(lacking))
    except TimeoutError:
        return Verdict(Agreement.UNVERIFIED, "our own tokens take too long")
    ours = reference.answers
    if (probe := first_difference(ours, theirs)) is not None:
        path = reference.tokenizer.path if reference.tokenizer else None
        difference = await aside(
            lambda: describe(probe, ours[probe], theirs[probe], path), OUR_ANSWERS_TIMEOUT_S
        )
        return Verdict(Agreement.DIFFERS, str(difference), difference)
    same = len(theirs.keys() & ours.keys())
    if not same:
        return Verdict(Agreement.UNVERIFIED, "it refuses all that could be compared")
    media = await _has_same_head(reference.head, inquiries, worker, model)
    why = f"the same tokens of {same} probes{', and before an image' if media else ''}"
    left_out: bool | None = False
    whole, less = theirs.get(TOOLS.name), theirs.get(NO_TOOLS.name)
    # A worker that does not accept tools, or whose template does not write them, leaves none out.
    # Others have to answer a chat, so they are asked only if it matters.
    if whole is not None and less is not None and len(whole) != len(less):
        left_out = None
        if choosing:
            counts = len(whole) // ID_BYTES, len(less) // ID_BYTES
            left_out = await leaves_out(inquiries, worker, model, TOOLS.body, counts)
    return Verdict(Agreement.AGREES, why, media=media, left_out=left_out)


async def _has_same_head(head: bytes, inquiries: Inquiries, worker: Worker, model: str) -> bool:
    """Return whether a worker's tokens of a chat with an image begin with `head`.

    A model without vision refuses the chat; so may one for which the image is too small.
    """
    with suppress(NoTokenizer, NoAnswer, PromptRefused):
        theirs = await tokenize(inquiries, worker, model, IMAGE.body) if head else b""
        return len(theirs) > len(head) > 0 and theirs.startswith(head)
    return False
