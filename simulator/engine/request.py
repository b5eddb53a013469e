"""One generation as the engine sees it: tokens in, tokens out, and its progress."""

from __future__ import annotations

from array import array

from simulator.kv.blocks import Chain


class EngineRequest:
    """A prompt, the answer it will get, and its progress.

    The answer's token ids are known beforehand (`answer`): a simulated model computes time, not
    text. `tokens` holds the prompt and the answer so far; the KV of the first `computed` of them
    is in the blocks of `table`.
    """

    __slots__ = (
        "answer",
        "arrived",
        "cached_tokens",
        "chain",
        "computed",
        "emitted",
        "l1_tokens",
        "l2_tokens",
        "lora_name",
        "prompt_tokens",
        "report_reuse",
        "request_id",
        "salt",
        "table",
        "tokens",
    )

    def __init__(
        self,
        request_id: str,
        prompt: array[int],
        answer: array[int],
        *,
        lora_name: str | None = None,
        salt: str | None = None,
        report_reuse: bool = False,
    ) -> None:
        if not prompt:
            raise ValueError("a prompt needs at least one token")
        if not answer:
            raise ValueError("an answer needs at least one token")
        self.request_id = request_id
        self.prompt_tokens = len(prompt)
        self.answer = answer
        self.lora_name = lora_name
        self.salt = salt
        #: Announce reused blocks as if newly stored (vLLM `kv_cache_report_mode` "full").
        self.report_reuse = report_reuse
        self.tokens = prompt[:]
        self.chain = Chain(0, None, None)
        self.table: list[int] = []
        self.computed = 0
        self.emitted = 0
        #: Prompt tokens found in the cache when first scheduled; None until then.
        self.cached_tokens: int | None = None
        #: The part of these loaded from L1 and from L2.
        self.l1_tokens = self.l2_tokens = 0
        self.arrived = 0.0

    def __repr__(self) -> str:
        return (
            f"<Request {self.request_id} prompt={self.prompt_tokens} computed={self.computed} "
            f"emitted={self.emitted}/{len(self.answer)}>"
        )

    @property
    def total_tokens(self) -> int:
        """Return how many tokens prompt and whole answer have together."""
        return self.prompt_tokens + len(self.answer)

    @property
    def finished(self) -> bool:
        """Return true once the last token of the answer is out."""
        return self.emitted == len(self.answer)
