"""Prompts that workers loaded from L2 and now keep on L1, although no event says so.

vLLM's offloading announces everything that enters host memory. LMCache announces what it writes,
but not what it reads from L2, and may keep that on L1 too: its server does with
`--l2-prefetch-policy retain`
(`lmcache/v1/distributed/storage_controllers/prefetch_policy.py`), and LMCache in the engine's
process always does. So such prompts are expected on L1 for some minutes, or until an answer shows
that they are not there.
"""

from bisect import bisect_right

from strategies.base import Prompt
from strategies.cost import held_tokens
from strategies.recent import Recent

#: They are expected there for at least this many seconds, and at most twice as long.
BELIEVED_S = 300.0


class Promoted:
    """Promoted starts of prompts by worker, in at most `limit_bytes`."""

    def __init__(self, limit_bytes: int, seconds: float = BELIEVED_S) -> None:
        self._limit, self._seconds = limit_bytes, seconds
        self._kept = Recent(limit_bytes, seconds)

    def add(self, prompt: Prompt, worker: str, tokens: int, now: float) -> None:
        """Record that `worker` loaded what its GPU lacked of the first `tokens` of a prompt."""
        units = int(tokens / prompt.unit_tokens)
        blocks = bisect_right(prompt.ends, units, 0, len(prompt.keys) + 1) - 1
        if blocks > 0:
            kept = self._kept
            kept.settle(kept.insert(prompt.keys[:blocks], worker, now), took=True)

    def held(self, prompt: Prompt, now: float) -> dict[str, int]:
        """Return, by worker, how many first tokens of the prompt are expected on L1."""
        found = self._kept.held(prompt.keys, now)
        return {worker: held_tokens(prompt, blocks) for worker, blocks in found.items()}

    def missed(self, prompt: Prompt, worker: str, tokens: int, now: float) -> None:
        """Forget the worker if fewer tokens of a prompt were there than expected.

        `tokens` is how many its GPU and L1 had.
        """
        if self.held(prompt, now).get(worker, 0) > tokens + prompt.unit_tokens:
            self.forget(worker)

    def forget(self, worker: str) -> None:
        """Drop everything of a worker: its L1 is a new one, or did not hold what was expected."""
        self._kept.forget(worker)

    def __len__(self) -> int:
        """Return the number of blocks, counted once for each holder."""
        return len(self._kept)
