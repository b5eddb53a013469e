"""The console script. To be told to end is no error, not even while modules are being loaded."""

import os
import signal
import sys
from types import FrameType

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
        from router import output  # noqa: PLC0415 - loading takes most of a second
        from router.cli.main import app  # noqa: PLC0415

        obeys = app(sys.argv[1:])
        if not serves:
            signal.signal(signal.SIGTERM, _end)
            signal.signal(signal.SIGINT, signal.default_int_handler)
        output.take_over()
        try:
            obeys()
        finally:
            output.deliver()
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
