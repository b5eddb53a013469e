"""Speed profiles: how fast a simulated worker is, and how much its KV cache holds.

The constants are derived from published figures of model and hardware, then rounded. They are
meant for ranking routing policies, not for predicting absolute performance or cost.

H100 SXM (NVIDIA data sheet): 989 TFLOP/s dense bf16, 3.35 TB/s, 80 GB. Llama 3.1 (Hugging Face
`config.json`): 8B has 32 layers, 32 heads of 128, 8 of them KV; 70B has 80, 64 of 128, 8 KV.

===========================  ===========================  =================================
quantity                     8B on one H100               70B on eight H100, tensor parallel
===========================  ===========================  =================================
weights, 2 bytes each        16.06 GB                     141.2 GB
KV bytes a token             2·32·8·128·2 = 131,072       2·80·8·128·2 = 327,680
FLOP a token                 2·8.03e9 = 1.61e10           2·70.6e9 = 1.41e11
R = FLOP/s over FLOP         at 32 % of peak: 20,000      at 27 % of 8 peaks: 15,000
attention FLOP a token       4·32·4,096·context           4·80·8,192·context
Q: attention equals weights  1.61e10/524,288 = 30,600     1.41e11/2,621,440 = 53,900
t0 = weights over bandwidth  4.8 ms, + launch 2 ms        5.3 ms, + 160 all-reduces of 80 us
tk = KV bytes over bandwidth 6e-8 at 65 %                 2.5e-8 at 49 % of 8
KV room: 0.9·80 GB each,     53 GB: 400,000 tokens        427 GB: 1,300,000 tokens
less weights, activations
===========================  ===========================  =================================

ts, 20 to 30 us a sequence, stands for sampling and the scheduler's own work per request.
Prefill is bound by arithmetic and decode by bandwidth: Pope et al., "Efficiently Scaling
Transformer Inference", arXiv 2211.05102. Chunked prefill: Agrawal et al., arXiv 2403.02310.
"""

from dataclasses import dataclass
from math import sqrt
from random import Random

#: A noisy step takes at least this share of its usual duration.
MIN_NOISE_FACTOR = 0.1


@dataclass(frozen=True, slots=True)
class Profile:
    """One worker's speed and capacity.

    A step takes `t0_s`, plus for each prefill chunk
    `chunk / R * (1 + (context + chunk / 2) / Q)`, plus for each decoding sequence
    `ts_s + tk_s * context`.
    """

    name: str
    #: R: prompt tokens per second at short context.
    prefill_tokens_per_s: float
    #: Q: the context, in tokens, at which attention costs as much again as the weights.
    attention_tokens: float
    #: Fixed cost of a step, in seconds.
    t0_s: float
    #: Seconds per step for each decoding sequence.
    ts_s: float
    #: Seconds per step for each token of a decoding sequence's context.
    tk_s: float
    #: Capacity of the KV cache, in tokens.
    kv_tokens: int
    #: Bytes of one token in the KV cache.
    kv_bytes: int = 131_072
    #: Longest prompt and answer together, in tokens.
    max_model_len: int = 131_072
    #: Tokens one step may compute (vLLM `--max-num-batched-tokens`).
    max_num_batched_tokens: int = 8192
    #: Sequences that may run at once (vLLM `--max-num-seqs`).
    max_num_seqs: int = 256
    #: Whether a step may both prefill and decode (chunked prefill). If not, a step is either, and
    #: prefill comes first, as in engines without chunked prefill.
    mixed_steps: bool = True
    #: Standard deviation of a step's duration, as a share of it.
    noise: float = 0.0

    def prefill_seconds(self, chunk: int, context: int) -> float:
        """Return the seconds it takes to compute `chunk` tokens after `context` computed ones."""
        attention = 1.0 + (context + chunk / 2) / self.attention_tokens
        return chunk / self.prefill_tokens_per_s * attention

    def noisy(self, seconds: float, steps: int, chance: Random) -> float:
        """Return a random duration of `steps` steps that take `seconds` without noise."""
        if not self.noise:
            return seconds
        return seconds * max(MIN_NOISE_FACTOR, chance.gauss(1.0, self.noise / sqrt(steps)))

    def decode_seconds(self, sequences: int, context: int) -> float:
        """Return the seconds of a step that decodes `sequences` with `context` tokens in all."""
        return self.ts_s * sequences + self.tk_s * context


PROFILES = {
    profile.name: profile
    for profile in (
        Profile(
            name="llama-3.1-8b-h100",
            prefill_tokens_per_s=20_000,
            attention_tokens=30_000,
            t0_s=0.007,
            ts_s=2e-5,
            tk_s=6e-8,
            kv_tokens=400_000,
        ),
        Profile(
            name="llama-3.1-70b-8xh100",
            prefill_tokens_per_s=15_000,
            attention_tokens=53_000,
            t0_s=0.018,
            ts_s=3e-5,
            tk_s=2.5e-8,
            kv_tokens=1_300_000,
            kv_bytes=327_680,
        ),
        # For tests: models no real hardware, is fast, and has a cache small enough to overflow.
        Profile(
            name="toy",
            prefill_tokens_per_s=1_000_000,
            attention_tokens=30_000,
            t0_s=0.001,
            ts_s=1e-6,
            tk_s=1e-9,
            kv_tokens=32_768,
            max_model_len=16_384,
            max_num_batched_tokens=2048,
            max_num_seqs=64,
        ),
    )
}


def profile_named(name: str) -> Profile:
    """Return the profile of that name; raise ValueError that lists the known names."""
    try:
        return PROFILES[name]
    except KeyError:
        known = ", ".join(PROFILES)
        raise ValueError(f"no speed profile {name!r}; there are: {known}") from None
