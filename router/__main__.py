"""The console script. To be told to end is no error, not even while modules are being loaded.

What commands print: if it cannot be delivered, the command has failed.
"""

import os
import signal
import sys
from contextlib import suppress
from errno import EPIPE
from io import TextIOWrapper
from types import FrameType
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


#: Commands that obey signals of their own once they serve. Until then nothing is begun that would
#: have to be ended, and what a SIGHUP asks for, to read the settings, is about to be done.
_SERVE = ("serve", "controller")


def main() -> None:
    """Load the command line and run it."""
    _occupy_standard_streams()
    serves = sys.argv[1:2] and sys.argv[1] in _SERVE
    # The first process of a container is deaf to what it has no handler for.
    signal.signal(signal.SIGTERM, _end_at_once)
    signal.signal(signal.SIGINT, _end_at_once)
    if serves:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        from router.cli.main import app  # noqa: PLC0415

        obeys = app(sys.argv[1:])
        if not serves:
            signal.signal(signal.SIGTERM, _end)
            signal.signal(signal.SIGINT, signal.default_int_handler)
        take_over()
        try:
            obeys()
        finally:
            deliver()
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _occupy_standard_streams() -> None:
    """Open standard streams that are closed, or else a socket could become one, and printing would
    write into it; uvloop aborts the process when it closes such a socket."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)


def _end_at_once(number: int, _: FrameType | None) -> None:
    """Raise nothing: compiled modules that are being loaded pass over what is raised in them, or
    make something else of it."""
    os._exit(128 + number)


def _end(number: int, _: FrameType | None) -> None:
    """End as whoever is ended by a signal, and clear up."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    main()
