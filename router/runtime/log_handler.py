"""A log handler that drops lines rather than wait for whoever should read them.

Standard error is often a pipe, and a pipe is full once its reader hangs. A router that waited for
it would answer nobody.
"""

import logging
import select
from io import UnsupportedOperation
from typing import Final, TextIO

#: Characters per write. In UTF-8 these are at most 4096 bytes, which a pipe that is ready takes.
PIECE: Final = 1024


class Unhindered(logging.StreamHandler[TextIO]):
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
        for start in range(0, len(text), PIECE):
            if self._poll is not None and not self._poll.poll(0):
                self._cut = self._cut or start > 0
                return False
            self.stream.write(text[start : start + PIECE])
            self.flush()
        self._cut = False
        return True


def _missing(lines: int) -> logging.LogRecord:
    said = "%d lines are missing here: nobody read the log"
    return logging.LogRecord("warmroute", logging.WARNING, __file__, 0, said, (lines,), None)
