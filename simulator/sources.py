"""Where cached tokens came from, for whoever asks, in the words of the engines that tell it.

LMCache's server tells what lay on the GPU and what it had beyond that
(`lmcache/integration/vllm/lmcache_mp_connector.py`, `request_finished`); SGLang tells device, host
and storage (`srt/entrypoints/openai/utils.py`, `process_cached_tokens_details_from_ret`). vLLM by
itself tells their sum.
"""

from typing import Any, NamedTuple

from simulator.bodies import Generate


class Found(NamedTuple):
    """Cached tokens of the prompts of one HTTP request, by tier."""

    gpu: int = 0
    l1: int = 0
    l2: int = 0


#: Where nothing was cached.
NOWHERE = Found()


class Asked(NamedTuple):
    """In which words it is to be told."""

    lmcache: bool = False
    """`kv_transfer_params: {"cached_token_stats": true}`"""
    sglang: bool = False
    """`return_cached_tokens_details: true`"""

    @classmethod
    def by(cls, body: Generate) -> "Asked":
        """What a request's fields ask for."""
        params = body.kv_transfer_params
        return cls(
            params is not None and bool(params.cached_token_stats),
            bool(body.return_cached_tokens_details),
        )

    def told(self, found: Found) -> dict[str, Any]:
        """Fields of the answer."""
        fields: dict[str, Any] = {}
        if self.lmcache:
            beyond = found.l1 + found.l2
            fields["kv_transfer_params"] = {
                "cached_token_stats": {
                    "num_vllm_cached_tokens": found.gpu,
                    "num_lmcache_cached_tokens": found.gpu + beyond if beyond else 0,
                    "num_lmcache_extra_cached_tokens": beyond,
                }
            }
        if self.sglang:
            details = {"device": found.gpu, "host": found.l1, "storage": found.l2}
            fields["sglext"] = {"cached_tokens_details": details}
        return fields


#: Where nobody asks.
NOTHING = Asked()
