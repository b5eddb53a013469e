"""The clock of sessions that only this process knows: no change of the system's clock moves it."""

from time import monotonic, time

_START = time() - monotonic()


def steady() -> float:
    """Return seconds since 1970 as the system's clock would show if nobody had set it.

    The time that the machine was suspended does not count on Linux and macOS.
    """
    return _START + monotonic()
