"""What commands print: if it cannot be delivered, the command has failed."""

import os
import sys
from contextlib import suppress
from errno import EPIPE
from io import TextIOWrapper
from typing import BinaryIO, NoReturn, cast


class Output(TextIOWrapper):
    """Standard output that ends the command, in one sentence, if the disk is full, say.

    A reader that has left, such as `head`, needs no sentence.
    """

    def write(self, text: str, /) -> int:
        """Write. Raises SystemExit with 1."""
        try:
            return super().write(text)
        except OSError as error:
            self._end(error)

    def flush(self) -> None:
        """Write out what is held back. Raises SystemExit with 1."""
        try:
            super().flush()
        except OSError as error:
            self._end(error)

    def _end(self, error: OSError) -> NoReturn:
        # What is held back goes nowhere, or the interpreter would try again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
        if error.errno != EPIPE:
            with suppress(OSError):
                os.write(2, f"standard output: {error.strerror}\n".encode())
        raise SystemExit(1) from None


def take_over() -> None:
    """Make standard output one that ends the command; no effect if it is closed."""
    old = sys.stdout
    if isinstance(old, TextIOWrapper):
        sys.stdout = Output(
            cast("BinaryIO", old.buffer),
            encoding=old.encoding,
            errors=old.errors,
            line_buffering=old.line_buffering,
            write_through=old.write_through,
        )


def deliver() -> None:
    """Write out what is held back, while the exit code can still tell of a failure."""
    if sys.stdout is not None:
        sys.stdout.flush()
