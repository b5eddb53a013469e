"""Cached tokens by tier, reported on request in the formats of LMCache and SGLang.

LMCache's server reports what was on the GPU and what it had beyond that
(`lmcache/integration/vllm/lmcache_mp_connector.py`, `request_finished`); SGLang reports device,
host and storage (`srt/entrypoints/openai/utils.py`, `process_cached_tokens_details_from_ret`).
vLLM by itself reports only the sum.
"""

from typing import Any, NamedTuple

from simulator.api.bodies import Generate


class Found(NamedTuple):
    """Cached tokens of one HTTP request's prompts, by tier."""

    gpu: int = 0
    l1: int = 0
    l2: int = 0


#: Nothing was cached.
NOWHERE = Found()


class Asked(NamedTuple):
    """The report formats that a request asks for."""

    lmcache: bool = False
    """`kv_transfer_params: {"cached_token_stats": true}`"""
    sglang: bool = False
    """`return_cached_tokens_details: true`"""

    @classmethod
    def by(cls, body: Generate) -> "Asked":
        """Read them from the fields of a request."""
        params = body.kv_transfer_params
        return cls(
            params is not None and bool(params.cached_token_stats),
            bool(body.return_cached_tokens_details),
        )

    def told(self, found: Found) -> dict[str, Any]:
        """The fields to add to the answer."""
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


#: No report is asked for.
NOTHING = Asked()
