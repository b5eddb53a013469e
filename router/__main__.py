"""The console script. To be told to end is no error, not even while modules are being loaded."""

import signal
import sys
from types import FrameType

#: Commands that a SIGHUP does not end. What it asks for, to read the settings, is what they are
#: about to do until they obey it.
_SERVE = ("serve", "controller")


def main() -> None:
    """Load the command line and run it."""
    # The first process of a container is deaf to what it has no handler for.
    signal.signal(signal.SIGTERM, _end)
    if sys.argv[1:2] and sys.argv[1] in _SERVE:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        from router.cli import app  # noqa: PLC0415 - loading takes most of a second

        app()
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _end(number: int, _: FrameType | None) -> None:
    """End as whoever is ended by a signal; commands that serve have other handlers."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    main()
