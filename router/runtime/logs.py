"""Log lines for people or for machines, on standard error. They never contain prompts.

Standard error is often a pipe, and a pipe is full once its reader hangs. A router that waited for
it would answer nobody, so lines are dropped then, and counted. No thread writes them: one that
waits for a full pipe would keep the process from ending.
"""

import logging
import select
import sys
from asyncio import CancelledError
from collections.abc import Callable
from datetime import UTC, datetime
from io import UnsupportedOperation
from typing import Final, TextIO

import msgspec

#: Characters per write. In UTF-8 these are at most 4096 bytes, which a pipe that is ready takes.
MAX_WRITE_CHARS: Final = 1024


class NonBlockingHandler(logging.StreamHandler[TextIO]):
    """Writes to a stream as long as that takes something.

    If several processes write to one pipe, one of them may still take the last room in it between
    another's look and its write.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__(stream)
        self._dropped = 0
        """Lines dropped, or cut short, since the last one that was written."""
        self._cut = False
        """The last thing written is the beginning of a line."""
        self._poll: select.poll | None = None
        try:
            descriptor = self.stream.fileno()
        except (AttributeError, ValueError, UnsupportedOperation):  # closed, or not a file
            return
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, or drop it."""
        try:
            lines = [self.format(record), ""]
            if self._dropped:
                lines.insert(0, self.format(_missing(self._dropped)))
            if self._cut:
                lines.insert(0, "")
            self._dropped = 0 if self._write(self.terminator.join(lines)) else self._dropped + 1
        except Exception:  # noqa: BLE001 - as in the standard library
            self.handleError(record)

    def _write(self, text: str) -> bool:
        """Write as much as the stream takes; return whether that was all."""
        for start in range(0, len(text), MAX_WRITE_CHARS):
            if self._poll is not None and not self._poll.poll(0):
                self._cut = self._cut or start > 0
                return False
            self.stream.write(text[start : start + MAX_WRITE_CHARS])
            self.flush()
        self._cut = False
        return True


def _missing(lines: int) -> logging.LogRecord:
    message = "%d lines are missing here: nobody read the log"
    return logging.LogRecord("warmroute", logging.WARNING, __file__, 0, message, (lines,), None)


class _Json(logging.Formatter):
    """Writes one JSON object per line; a record's `fields` are keys of it."""

    def __init__(self, place: int | None) -> None:
        super().__init__()
        self._place = {} if place is None else {"process": place}

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            **self._place,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


class _CutOnPurpose(logging.Filter):
    """Drops uvicorn's complaints about answers that are cut off on purpose.

    That is how a client learns that a worker died in mid-answer, which is logged with its reason
    where it happens. And a server that is told to stop ends what has not ended by itself.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        ended = record.exc_info is not None and record.exc_info[0] is CancelledError
        return not ended and "without completing response" not in record.msg


def set_up(level: str, form: str = "plain", place: int | None = None) -> None:
    """Send log lines of `level` and above to standard error, in the form `plain` or `json`.

    `place` marks the lines of one of several processes.
    """
    handler = NonBlockingHandler(sys.stderr)
    if form == "json":
        handler.setFormatter(_Json(place))
    else:
        mark = "" if place is None else f"[{place}] "
        handler.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)-7s {mark}%(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in ("httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)  # they log each request, with headers
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # it logs each bad upload
    logging.getLogger("uvicorn.error").addFilter(_CutOnPurpose())


def announce(message: str, plainly: Callable[[str], None]) -> None:
    """Write what people wait for, whatever the level; `plainly` does so where lines are plain."""
    for handler in logging.root.handlers:
        if isinstance(handler.formatter, _Json):
            handler.handle(logging.LogRecord("warmroute", logging.INFO, "", 0, message, None, None))
            return
    plainly(message)
