"""What workers loaded from L2, and keep on their L1 from then on though nobody announces it.

vLLM's offloading announces what comes to the host's memory. LMCache announces what it writes, not
what it reads from L2, and can keep that on L1 too: its server is asked to (`--l2-prefetch-policy
retain`, `lmcache/v1/distributed/storage_controllers/prefetch_policy.py`), in the engine's process
it does. So it is believed for some minutes, and until one answer shows that it is not so.
"""

from bisect import bisect_right

from strategies.base import Prompt
from strategies.cost import held_tokens
from strategies.recent import Recent

#: Seconds for which it is believed at least; twice as long at most.
BELIEVED_S = 300.0


class Promoted:
    """Prompts' beginnings by worker, in at most `limit_bytes`."""

    def __init__(self, limit_bytes: int, seconds: float = BELIEVED_S) -> None:
        self._limit, self._seconds = limit_bytes, seconds
        self._kept = Recent(limit_bytes, seconds)

    def add(self, prompt: Prompt, worker: str, tokens: int, now: float) -> None:
        """`worker` loaded what it lacked of the first `tokens` of a prompt."""
        units = int(tokens / prompt.unit_tokens)
        blocks = bisect_right(prompt.ends, units, 0, len(prompt.keys) + 1) - 1
        if blocks > 0:
            kept = self._kept
            kept.settle(kept.insert(prompt.keys[:blocks], worker, now), took=True)

    def held(self, prompt: Prompt, now: float) -> dict[str, int]:
        """Tokens at the start of a prompt that lie on workers' L1 by this."""
        found = self._kept.held(prompt.keys, now)
        return {worker: held_tokens(prompt, blocks) for worker, blocks in found.items()}

    def missed(self, prompt: Prompt, worker: str, tokens: int, now: float) -> None:
        """A worker had `tokens` of a prompt on its GPU and L1: if more was believed, nothing is."""
        if self.held(prompt, now).get(worker, 0) > tokens + prompt.unit_tokens:
            self.forget(worker)

    def forget(self, worker: str) -> None:
        """Its L1 is another one, or was not as believed."""
        self._kept.forget(worker)

    def __len__(self) -> int:
        """Blocks, counted once for each holder."""
        return len(self._kept)
