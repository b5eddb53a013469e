"""Reads `usage` from an answer while it is relayed, without changing a byte of it."""

import json
import re
from typing import Any, Final, NamedTuple

import msgspec

from router.upstream.models import decode

#: Bytes kept of the end of an answer, and longest `usage` that is read.
TAIL_BYTES: Final = 4096
#: Bytes of the beginning of a stream in which the tokens of the prompt may be told.
BEGINNING_BYTES: Final = 1024

#: More tokens than any prompt has.
MAX_TOKENS: Final = 1 << 31

_KEY: Final = b'"usage"'
#: Bytes before the end of a stream in which its last report usually is.
_NEAR_END_BYTES: Final = 1024
#: What follows a key whose value is an object. In JSON, quotes within text are escaped: no text
#: that speaks of usage looks like the key.
_OBJECT = re.compile(rb"\s*:\s*\{")
#: A string without escapes, or the beginning of one.
_TEXT = re.compile(rb'"[^"]*"?')

#: Keys of what tells on which tiers cached tokens were.
_SOURCES = re.compile(rb'"cached_token(?:_stats|s_details)"')

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
    """Keeps the last bytes of one answer, and what was reported before them.

    In a stream the last report counts, with what only one at its beginning tells. An answer in one
    piece has its report at the top level, wherever it stands: vLLM puts fields as long as prompts
    after it.
    """

    __slots__ = ("_document", "_earlier", "_long", "_tail", "_whole")

    def __init__(self, *, long: bool = False) -> None:
        """`long`: in a stream, too, much may follow the last report."""
        self._long = long
        self._tail: bytes | bytearray = b""
        self._whole = True
        """The tail is all of it."""
        self._document: _Document | None = None
        """What was seen of an answer in one piece, before the tail."""
        self._earlier = NO_USAGE
        """The last report of a stream before the tail."""

    def add(self, chunk: bytes) -> None:
        """Add a chunk that was relayed."""
        tail = self._tail
        if not tail:
            self._tail = chunk  # all of it, for most answers that are not streams
            return
        if isinstance(tail, bytes):
            self._tail = tail = bytearray(tail)
        tail += chunk
        if len(tail) > 2 * TAIL_BYTES:
            self._shorten(tail, len(tail) - TAIL_BYTES - len(_KEY))

    def _shorten(self, tail: bytearray, end: int) -> None:
        """Drop the bytes before `end`, once they are looked at."""
        if self._whole:
            self._whole = False
            if tail[:1] == b"{":
                self._document = _Document()
            else:
                self._earlier = _last_report(tail, BEGINNING_BYTES, NO_USAGE)
        elif self._long and self._document is None:
            self._earlier = _last_report(tail, end, self._earlier)
        if self._document is not None:
            self._document.pass_by(tail, 0, end)
        del tail[:end]

    def end(self, without: int) -> bytes:
        """Return the end of the answer, but for its last bytes."""
        end = max(0, len(self._tail) - without)
        return bytes(self._tail[max(0, end - TAIL_BYTES) : end])

    def read(self) -> Usage:
        """Return the `usage` that was reported, once the whole answer was added."""
        data = self._tail
        if self._whole and data[:1] == b"{":
            if len(data) <= TAIL_BYTES:
                return _of_short(data)
            self._document = _Document()
        if self._document is None:
            data = data if self._whole else data[-TAIL_BYTES:]
            usage = _last_report(data, len(data), self._earlier)
        else:
            usage = _of_document(self._document, data)
        return _with_sources(usage, data)


class _Document:
    """Finds the `usage` at the top level of a JSON object that passes by in pieces.

    The top level is told by the braces that close after it, so what comes before it costs no more
    than a search for the key.
    """

    __slots__ = ("_depth", "_found", "_level", "_open")

    def __init__(self) -> None:
        self._found = b""
        """The least nested object of that name so far, of equals the last; and what follows."""
        self._level = 0
        """How many more braces were open there than at the first one."""
        self._depth = 0
        """How many more are open now."""
        self._open = b""
        """What has to come before the next bytes if they begin within a string."""

    def pass_by(self, data: bytes | bytearray, start: int, end: int) -> None:
        """Look at what stands between `start` and `end`; what follows there comes again."""
        counted = at = start
        while (key := data.find(_KEY, at, end + len(_KEY) - 1)) >= 0:
            at = key + len(_KEY)
            if not _OBJECT.match(data, at):
                continue
            if self._found:
                self._count(data[counted:key])
            counted = key
            if not self._found or self._depth <= self._level:
                self._found, self._level = bytes(data[at : at + TAIL_BYTES]), self._depth
        if self._found:
            self._count(data[counted:end])

    def _count(self, data: bytes | bytearray) -> None:
        """Count braces, except those within strings."""
        plain = (self._open + data).replace(rb"\\", b"").replace(rb"\"", b"")
        if plain.count(b'"') % 2:
            self._open = b'"\\' if plain.endswith(b"\\") else b'"'
        else:
            self._open = b""
        rest = _TEXT.sub(b"", plain)
        self._depth += rest.count(b"{") - rest.count(b"}")

    def usage(self) -> Usage:
        """Return the `usage` of the object, once all of it has passed by."""
        return _report(self._found) if self._level == self._depth + 1 else NO_USAGE


def _of_short(data: bytes | bytearray) -> Usage:
    """Return the `usage` of a JSON object that is no longer than the tail."""
    try:
        answer = decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _with_sources(_of_document(_Document(), data), data)
    if answer.usage is None:
        return NO_USAGE
    return _sourced(_usage(answer.usage), answer.kv_transfer_params, answer.sglext)


def _of_document(document: _Document, data: bytes | bytearray) -> Usage:
    """Return the `usage` of a JSON object that ends with `data`; the rest has passed by."""
    end = len(data)
    near = _Document()  # it is the last field of most, or nearly so
    near.pass_by(data, max(0, end - TAIL_BYTES), end)
    usage = near.usage()
    if usage == NO_USAGE:
        document.pass_by(data, 0, end)
        usage = document.usage()
    return usage


def _last_report(data: bytes | bytearray, end: int, earlier: Usage) -> Usage:
    """Return the last report that begins before `end`, with what only `earlier` ones have.

    Anthropic's streams tell the prompt's tokens first, and those of the answer at their end.
    """
    stop = end + len(_KEY) - 1
    at = data.rfind(_KEY, max(0, end - _NEAR_END_BYTES), stop)
    if at < 0:
        if end <= _NEAR_END_BYTES or data.find(_KEY, 0, stop) < 0:  # much faster than from the end
            return earlier
        at = data.rfind(_KEY, 0, stop)
    last = NO_USAGE
    while at >= 0:
        after = at + len(_KEY)
        if _OBJECT.match(data, after):
            last = _completed(last, _report(data[after : after + TAIL_BYTES]))
            if last.prompt is not None and last.answer is not None:
                return last
        at = data.rfind(_KEY, 0, at)
    return _completed(last, earlier)


def _completed(last: Usage, earlier: Usage) -> Usage:
    """Return a report with what only an earlier one has."""
    if earlier is NO_USAGE:
        return last
    if last is NO_USAGE:
        return earlier
    if last.prompt is None:
        last = last._replace(prompt=earlier.prompt, cached=earlier.cached)
    return last if last.answer is not None else last._replace(answer=earlier.answer)


def _report(value: bytes | bytearray) -> Usage:
    """Read the object that `value` begins with, after a colon."""
    usage = _object_after(value.decode("utf-8", errors="replace"), 0)
    return NO_USAGE if usage is None else _usage(usage)


def _with_sources(usage: Usage, data: bytes | bytearray) -> Usage:
    """Add on which tiers the cached tokens were, if that is reported near the end."""
    if usage == NO_USAGE:
        return usage
    if not _SOURCES.search(data, max(0, len(data) - TAIL_BYTES)):
        return usage
    tail = data[-TAIL_BYTES:].decode("utf-8", errors="replace")
    return _sourced(usage, _last(tail, '"kv_transfer_params"'), _last(tail, '"sglext"'))


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
    return value if type(value) is int and 0 <= value < MAX_TOKENS else None
