"""Reads `usage` from the end of an answer while it is relayed, without changing a byte of it."""

import json
from typing import Any, Final, NamedTuple

import msgspec

from router.answered import decode
from router.events import EVENT_ENDS

#: Bytes kept of the end of an answer; `usage` is its last field, or nearly so.
TAIL: Final = 4096

#: Bytes at the end of a stream that are searched for its last event.
LAST = 1024

#: More tokens than any prompt has.
MOST: Final = 1 << 31

_scan = json.JSONDecoder().raw_decode


class Usage(NamedTuple):
    """Tokens of prompt and answer as the worker counted them; None where it did not report them."""

    prompt: int | None = None
    cached: int | None = None
    answer: int | None = None
    gpu: int | None = None
    """Cached tokens that were on the GPU."""
    host: int | None = None
    """Cached tokens that were in host memory."""


#: The worker reported nothing.
NO_USAGE = Usage()


class UsageTail:
    """Keeps the last bytes of one answer."""

    __slots__ = ("_tail",)

    def __init__(self) -> None:
        self._tail: bytes | bytearray = b""

    def add(self, chunk: bytes) -> None:
        """Add a chunk that was relayed."""
        tail = self._tail
        if not tail:
            self._tail = chunk  # all of it, for most answers that are not streams
            return
        if isinstance(tail, bytes):
            self._tail = tail = bytearray(tail)
        tail += chunk
        if len(tail) > 2 * TAIL:
            del tail[: -TAIL - 1]  # one byte more, so that `read` does not take it for all of it

    def end(self) -> bytes:
        """Return the last part of the answer, or all of it."""
        return bytes(self._tail)

    def last_event(self) -> bytes:
        """Return the last event of a stream, if it is short."""
        tail = bytes(self._tail[-LAST:]).strip()
        return tail[max(tail.rfind(end) + len(end) if end in tail else 0 for end in EVENT_ENDS) :]

    def read(self) -> Usage:
        """Return the last `usage` object in the tail."""
        data = self._tail
        if len(data) <= TAIL and data[:1] == b"{":  # most likely the whole answer
            try:
                said = decode(data)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                pass
            else:
                if said.usage is None:
                    return NO_USAGE
                return _sourced(_usage(said.usage), said.kv_transfer_params, said.sglext)
        return _scanned(data[-TAIL:].decode("utf-8", errors="replace"))


def _scanned(tail: str) -> Usage:
    usage = _last(tail, '"usage"')
    if usage is None:
        return NO_USAGE
    found = _usage(usage)
    if '"cached_token' not in tail:
        return found
    return _sourced(found, _last(tail, '"kv_transfer_params"'), _last(tail, '"sglext"'))


def _last(tail: str, key: str) -> dict[str, Any] | None:
    """Return the last object in the tail that is the value of `key`, which includes the quotes."""
    at = tail.rfind(key)
    while at >= 0:
        value = _object_after(tail, at + len(key))
        if value is not None:
            return value
        at = tail.rfind(key, 0, at)
    return None


def _object_after(text: str, at: int) -> dict[str, Any] | None:
    """Return the JSON object that is the value of the key ending at `at`, if it is one."""
    start = text.find("{", at, at + 16)
    if start < 0 or text[at:start].strip() != ":":
        return None  # null, or not a key at all
    try:
        value, _ = _scan(text, start)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _usage(usage: dict[str, Any]) -> Usage:
    """Read a `usage` object by OpenAI's names, or those of `/v1/responses` and `/v1/messages`.

    Anthropic's `input_tokens` excludes tokens read from a cache or written to one (vLLM
    `entrypoints/anthropic/serving.py`); OpenAI's counts are of the whole prompt.
    """
    prompt = _count(usage.get("prompt_tokens", usage.get("input_tokens")))
    answer = _count(usage.get("completion_tokens", usage.get("output_tokens")))
    if "cache_read_input_tokens" in usage or "cache_creation_input_tokens" in usage:
        read = _count(usage.get("cache_read_input_tokens"))
        written = _count(usage.get("cache_creation_input_tokens"))
        if prompt is not None and (read is not None or written is not None):
            return Usage(prompt + (read or 0) + (written or 0), read, answer)
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return Usage(prompt, _count(cached), answer)


def _sourced(usage: Usage, params: object, extension: object) -> Usage:
    """Add on which tiers the cached tokens were, if the worker reports it.

    LMCache (`kv_transfer_params.cached_token_stats`) and SGLang (`sglext.cached_tokens_details`) do
    on request; vLLM alone reports only the sum.
    """
    stats = params.get("cached_token_stats") if isinstance(params, dict) else None
    details = extension.get("cached_tokens_details") if isinstance(extension, dict) else None
    if isinstance(stats, dict):
        gpu = _count(stats.get("num_vllm_cached_tokens"))
        beyond = _count(stats.get("num_lmcache_extra_cached_tokens"))
        if gpu is None or beyond is None:
            return usage
        return _agreed(usage, gpu, None, gpu + beyond)
    if isinstance(details, dict):
        gpu, host = _count(details.get("device")), _count(details.get("host"))
        stored = _count(details.get("storage", 0))
        if gpu is None or host is None or stored is None:
            return usage
        return _agreed(usage, gpu, host, gpu + host + stored)
    return usage


def _agreed(usage: Usage, gpu: int, host: int | None, total: int) -> Usage:
    """Add the parts if they sum up to the reported total, or if none was reported."""
    if usage.cached not in {None, total}:
        return usage
    return usage._replace(cached=total, gpu=gpu, host=host)


def _count(value: object) -> int | None:
    # Not isinstance: in Python a bool is an int.
    return value if type(value) is int and 0 <= value < MOST else None
