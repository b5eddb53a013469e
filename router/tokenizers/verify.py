"""Compares a worker's tokens with ours, over the network.

Whether a worker makes the same tokens as the router, and if not, where they first differ.

Whether a pool's workers count other tokens than the router, and when to check why. Pure.
"""

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
from router.rendering.folder import TOKENIZER
from router.rendering.tokens import ID_BYTES
from router.runtime.threads import aside
from router.tokenizers.probes import IMAGE, NO_TOOLS, TOOLS, answers, head_answer
from router.tokenizers.tokenizer import LoadedTokenizer
from router.tokenizers.worker_tokenizer import (
    PATH,
    NoTokenizer,
    PromptRefused,
    leaves_out,
    tokenize,
    worker_answers,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer

#: Tokens shown before the first one that differs.
_TOKENS_SHOWN_BEFORE = 8


class Agreement(StrEnum):
    """What is known of a worker's tokens."""

    AGREES = "agrees"
    UNVERIFIED = "unverified"
    """The worker cannot be asked, or has not been asked yet."""
    DIFFERS = "differs"


@dataclass(frozen=True)
class Difference:
    """The first token that differs."""

    probe: str
    index: int
    """Position of the token, from 0."""
    ours: int | None
    """None if the tokens end before it."""
    theirs: int | None
    before: str = ""
    """The text just before it: the last tokens that both have."""
    ours_text: str = ""
    theirs_text: str = ""
    """What our tokenizer makes of the worker's id, which may not be what the worker means by it."""

    def __str__(self) -> str:
        return (
            f'probe "{self.probe}", token {self.index} after {self.before!r}:'
            f" {_said(self.ours, self.ours_text)} here,"
            f" {_said(self.theirs, self.theirs_text)} there"
        )


@dataclass(frozen=True)
class Verdict:
    """The result of comparing one worker's tokens for one model."""

    state: Agreement
    why: str
    difference: Difference | None = None
    media: bool = False
    """The tokens before an image agree too."""
    left_out: bool | None = False
    """Whether tools are left out of prompts with `tool_choice: none`; None: not known."""


def first_difference(
    ours: Mapping[str, bytes], theirs: Mapping[str, bytes]
) -> tuple[str, int] | None:
    """Return the probe and the position of the first token that differs.

    Only probes that both have are compared. One that we cannot express or that the worker refuses
    says nothing, because such a request is keyed by its text, or refused.
    """
    for name, mine_packed in ours.items():
        other = theirs.get(name)
        if other is not None and other != mine_packed:
            mine, its = _ids(mine_packed), _ids(other)
            pairs = enumerate(zip(mine, its, strict=False))
            shorter = min(len(mine), len(its))
            return name, next((place for place, (a, b) in pairs if a != b), shorter)
    return None


def difference(probe: str, index: int, ours: bytes, theirs: bytes, path: Path | None) -> Difference:
    """Describe a difference, with texts if `path` has a `tokenizer.json`; takes a second."""
    mine, its = _ids(ours), _ids(theirs)
    tokenizer = _tokenizer(path)

    def text(ids: Sequence[int]) -> str:
        return tokenizer.decode(list(ids), skip_special_tokens=False) if tokenizer and ids else ""

    return Difference(
        probe,
        index,
        mine[index] if index < len(mine) else None,
        its[index] if index < len(its) else None,
        text(mine[max(0, index - _TOKENS_SHOWN_BEFORE) : index]),
        text(mine[index : index + 1]),
        text(its[index : index + 1]),
    )


def _tokenizer(path: Path | None) -> "Tokenizer | None":
    from tokenizers import Tokenizer  # noqa: PLC0415 - takes 5 MB; loaded by now

    try:
        return Tokenizer.from_file(str(path / TOKENIZER)) if path else None
    except Exception:  # noqa: BLE001 - it raises plain Exceptions; no text then
        return None


def _ids(packed: bytes) -> "array[int]":
    return array("I", packed)


def _said(token: int | None, text: str) -> str:
    return "the end" if token is None else f"{token} {text!r}"


#: Seconds that our own answers, or the description of a difference, may take.
OUR_ANSWERS_TIMEOUT_S = 30.0
#: Seconds that one worker may take for all its answers.
WORKER_ANSWERS_TIMEOUT_S = 20.0


class ExpectedTokens:
    """What workers are compared with: our tokens, or those of one worker if we have none."""

    def __init__(
        self,
        inquiries: Inquiries,
        volume: LoadedTokenizer | None,
        workers: Sequence[Worker],
        models: Sequence[str],
        turns: asyncio.Semaphore,
    ) -> None:
        """`turns` limits how many sources compute our tokens at once, as those threads hold up
        others."""
        self.volume = volume
        self.answers: Mapping[str, bytes] = {}
        """Ids by the probe's name."""
        self.head = b""
        """Ids before an image, if known."""
        self._inquiries = inquiries
        self._workers = workers
        self._models = models
        self._turns = turns

    async def prepare(self) -> None:
        """Get the tokens to compare with; none if neither we nor a worker can tell."""
        if self.volume is not None:
            exact = self.volume.exact
            async with self._turns:
                self.answers = await aside(lambda: answers(exact), OUR_ANSWERS_TIMEOUT_S)
                self.head = await aside(lambda: head_answer(exact), OUR_ANSWERS_TIMEOUT_S)
            return
        for worker in self._workers:
            for model in [name for name in self._models if name in worker.models][:1]:
                with suppress(NoTokenizer, NoAnswer):
                    self.answers = await ask_worker(self._inquiries, worker, model)
                    return


async def ask_worker(
    inquiries: Inquiries, worker: Worker, model: str, names: Sequence[str] = ()
) -> dict[str, bytes]:
    """Return a worker's answers. Raises NoTokenizer, or NoAnswer, also if all take too long."""
    try:
        async with asyncio.timeout(WORKER_ANSWERS_TIMEOUT_S):
            return await worker_answers(inquiries, worker, model, names)
    except TimeoutError:
        raise NoAnswer(f"{PATH} takes too long") from None


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
    ours = reference.answers
    if not ours:
        return Verdict(Agreement.UNVERIFIED, "there is nothing to compare with")
    try:
        theirs = await ask_worker(inquiries, worker, model, list(ours))
        differing = first_difference(ours, theirs)
        if differing is not None:
            # Templates may write the date, and midnight may have been between the two.
            await reference.prepare()
            ours = reference.answers
            theirs = await ask_worker(inquiries, worker, model, list(ours))
            differing = first_difference(ours, theirs)
    except (NoTokenizer, NoAnswer) as lacking:
        return Verdict(Agreement.UNVERIFIED, str(lacking))
    except TimeoutError:
        return Verdict(Agreement.UNVERIFIED, "our own tokens take too long")
    if differing is not None:
        probe, index = differing
        path = reference.volume.path if reference.volume else None
        pair = ours[probe], theirs[probe]
        described = await aside(
            lambda: difference(probe, index, *pair, path), OUR_ANSWERS_TIMEOUT_S
        )
        return Verdict(Agreement.DIFFERS, str(described), described)
    same = len(theirs.keys() & ours.keys())
    if not same:
        return Verdict(Agreement.UNVERIFIED, "it refuses all that could be compared")
    media = await _same_head(reference.head, inquiries, worker, model)
    also = ", and before an image" if media else ""
    left_out = await _left_out(theirs, inquiries, worker, model, choosing=choosing)
    why = f"the same tokens of {same} probes{also}"
    return Verdict(Agreement.AGREES, why, media=media, left_out=left_out)


async def _left_out(
    theirs: Mapping[str, bytes],
    inquiries: Inquiries,
    worker: Worker,
    model: str,
    *,
    choosing: bool,
) -> bool | None:
    """Return whether a worker leaves out tools with `tool_choice: none`; None if not known.

    A worker that does not accept tools, or whose template does not write them, leaves none out.
    Others have to answer a chat, so they are asked only if it matters.
    """
    whole, less = theirs.get(TOOLS.name), theirs.get(NO_TOOLS.name)
    if whole is None or less is None or len(whole) == len(less):
        return False
    if not choosing:
        return None
    counts = len(whole) // ID_BYTES, len(less) // ID_BYTES
    return await leaves_out(inquiries, worker, model, TOOLS.body, counts)


async def _same_head(head: bytes, inquiries: Inquiries, worker: Worker, model: str) -> bool:
    """Return whether a worker's tokens of a chat with an image begin with `head`.

    A model without vision refuses the chat; so may one for which the image is too small.
    """
    with suppress(NoTokenizer, NoAnswer, PromptRefused):
        theirs = await tokenize(inquiries, worker, model, IMAGE.body) if head else b""
        return len(theirs) > len(head) > 0 and theirs.startswith(head)
    return False


#: Seconds between two checks; doubled each time, up to an hour.
RECOUNT_INTERVAL_S, MAX_RECOUNT_INTERVAL_S = 60.0, 3600.0


class Recount:
    """The state of one pool. Some workers always count differently, so checks become rarer."""

    def __init__(self) -> None:
        self._seen = 0
        self._due = 0.0
        self._pause = RECOUNT_INTERVAL_S

    def is_due(self, count: int, now: float) -> bool:
        """Whether to check: `count`, the number of miscounted prompts, has grown, and it is
        time."""
        if count <= self._seen:
            self._seen = count  # another pool of this name has restarted the count
            return False
        if now < self._due:
            return False
        self._seen, self._due = count, now + self._pause
        self._pause = min(MAX_RECOUNT_INTERVAL_S, 2 * self._pause)
        return True
