"""Reads a streamed answer with little work: when it began, how it ended, and its usage. Pure.

Each chunk costs one concatenation with a short tail, which is parsed at the end. Events are parsed
one by one only until the first one with a token, or if the answer's text is wanted.
"""

from typing import Any

import msgspec

#: Many times what the usage event and [DONE] need.
MAX_TAIL_BYTES = 8 * 1024
MAX_LINE_BYTES = 64 * 1024
MAX_ANSWER_BYTES = 64 * 1024 * 1024


class Fault(msgspec.Struct, frozen=True):
    """Why a request failed."""

    kind: str
    message: str


class PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class ReportedUsage(msgspec.Struct):
    """The tokens that the worker reports."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: PromptDetails | None = None

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens that were cached; None if the worker does not report them."""
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else None


class _Delta(msgspec.Struct):
    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None

    def speaks(self) -> bool:
        if self.delta is None:
            return self.text is not None
        parts = (self.delta.role, self.delta.content, self.delta.reasoning)
        return any(part is not None for part in (*parts, self.delta.reasoning_content))

    def words(self) -> str:
        return (self.delta.content if self.delta else self.text) or ""


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: ReportedUsage | None = None
    error: Any = None
    object: str | None = None


_decode = msgspec.json.Decoder(_Event).decode


class StreamEnd(msgspec.Struct, frozen=True):
    """How a stream ended: its usage and text, or its fault."""

    usage: ReportedUsage | None = None
    text: str = ""
    fault: Fault | None = None


class Answer:
    """A streamed answer as it arrives; `collect` keeps all of it, for its text."""

    def __init__(self, *, collect: bool = False) -> None:
        self.first_at: float | None = None
        self._collect = collect
        self._head = b""
        self._kept: list[bytes] = []
        self._kept_bytes = 0
        self._tail = b""
        self._cut = False

    def feed(self, chunk: bytes, now: float) -> None:
        """Take the next bytes, which arrived at `now`."""
        if self.first_at is None:
            self._look_for_a_token(chunk, now)
        if self._collect and self._kept_bytes < MAX_ANSWER_BYTES:
            self._kept.append(chunk)
            self._kept_bytes += len(chunk)
        elif len(self._tail) > MAX_TAIL_BYTES:
            self._tail = self._tail[-MAX_TAIL_BYTES:] + chunk
            self._cut = True
        else:
            self._tail += chunk

    def finish(self) -> StreamEnd:
        """Parse the answer's end, or all of it, once it is complete."""
        usage: ReportedUsage | None = None
        words: list[str] = []
        closed = False
        for line in self._lines():
            data = line[5:].strip()
            closed = data == b"[DONE]"
            if closed or not data:
                continue
            try:
                event = _decode(data)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                return StreamEnd(fault=Fault("broken stream", f"{error}: {_shown(data)}"))
            if event.error is not None or event.object == "error":
                return StreamEnd(fault=Fault("error event", error_message(data)))
            usage = event.usage or usage
            if self._collect:
                words.extend(choice.words() for choice in event.choices)
        if not closed:
            return StreamEnd(fault=Fault("broken stream", "it ended without [DONE]"))
        return StreamEnd(usage, "".join(words))

    def _lines(self) -> list[bytes]:
        lines = (b"".join(self._kept) + self._tail).splitlines()
        return [line for line in lines[self._cut :] if line.startswith(b"data:")]

    def _look_for_a_token(self, chunk: bytes, now: float) -> None:
        *lines, self._head = (self._head + chunk).split(b"\n")
        self._head = self._head[-MAX_LINE_BYTES:]
        if any(_speaks(line) for line in lines):
            self.first_at = now
            self._head = b""


def error_message(body: bytes) -> str:
    """Return the message of an error in OpenAI's format, or else the start of `body`."""
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _shown(body)
    error = document.get("error", document) if isinstance(document, dict) else document
    message = error.get("message") if isinstance(error, dict) else error
    return message[:200] if isinstance(message, str) else _shown(body)


def _speaks(line: bytes) -> bool:
    if not line.startswith(b"data:"):
        return False
    try:
        return any(choice.speaks() for choice in _decode(line[5:]).choices)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False  # [DONE], or garbage, which `finish` reports


def _shown(data: bytes) -> str:
    return data[:200].decode(errors="replace") or "(nothing)"
