"""Compares a worker's tokens with ours, over the network."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress

from router.fleet.worker import Worker
from router.rendering.body import ID_BYTES
from router.runtime.aside import aside
from router.tokenizers import remote
from router.tokenizers.agreement import (
    State,
    Verdict,
    answers,
    difference,
    first_difference,
    head_answer,
)
from router.tokenizers.leaving import leaves_out
from router.tokenizers.probe import IMAGE, NO_TOOLS, TOOLS
from router.tokenizers.remote import NoTokenizer, Refused, tokenize
from router.tokenizers.volume import Volume
from router.upstream.client import Inquiries, NoAnswer

#: Seconds that our own answers, or the description of a difference, may take.
PATIENCE_S = 30.0
#: Seconds that one worker may take for all its answers.
ALL_S = 20.0


class Reference:
    """What workers are compared with: our tokens, or those of one worker if we have none."""

    def __init__(
        self,
        inquiries: Inquiries,
        volume: Volume | None,
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
                self.answers = await aside(lambda: answers(exact), PATIENCE_S)
                self.head = await aside(lambda: head_answer(exact), PATIENCE_S)
            return
        for worker in self._workers:
            for model in [name for name in self._models if name in worker.models][:1]:
                with suppress(NoTokenizer, NoAnswer):
                    self.answers = await asked(self._inquiries, worker, model)
                    return


async def asked(
    inquiries: Inquiries, worker: Worker, model: str, names: Sequence[str] = ()
) -> dict[str, bytes]:
    """Return a worker's answers. Raises NoTokenizer, or NoAnswer, also if all take too long."""
    try:
        async with asyncio.timeout(ALL_S):
            return await remote.answers(inquiries, worker, model, names)
    except TimeoutError:
        raise NoAnswer(f"{remote.PATH} takes too long") from None


async def verified(
    reference: Reference,
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
        return Verdict(State.UNVERIFIED, "there is nothing to compare with")
    try:
        theirs = await asked(inquiries, worker, model, list(ours))
        found = first_difference(ours, theirs)
        if found is not None:
            # Templates may write the date, and midnight may have been between the two.
            await reference.prepare()
            ours = reference.answers
            theirs = await asked(inquiries, worker, model, list(ours))
            found = first_difference(ours, theirs)
    except (NoTokenizer, NoAnswer) as lacking:
        return Verdict(State.UNVERIFIED, str(lacking))
    except TimeoutError:
        return Verdict(State.UNVERIFIED, "our own tokens take too long")
    if found is not None:
        probe, index = found
        path = reference.volume.path if reference.volume else None
        pair = ours[probe], theirs[probe]
        said = await aside(lambda: difference(probe, index, *pair, path), PATIENCE_S)
        return Verdict(State.DIFFERS, str(said), said)
    same = len(theirs.keys() & ours.keys())
    if not same:
        return Verdict(State.UNVERIFIED, "it refuses all that could be compared")
    media = await _same_head(reference.head, inquiries, worker, model)
    also = ", and before an image" if media else ""
    left_out = await _left_out(theirs, inquiries, worker, model, choosing=choosing)
    why = f"the same tokens of {same} probes{also}"
    return Verdict(State.AGREES, why, media=media, left_out=left_out)


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
    with suppress(NoTokenizer, NoAnswer, Refused):
        theirs = await tokenize(inquiries, worker, model, IMAGE.body) if head else b""
        return len(theirs) > len(head) > 0 and theirs.startswith(head)
    return False
