"""Signal handling: SIGTERM and SIGINT stop the router, SIGHUP reloads the settings."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def obeying(stop: Callable[[], None], again: Callable[[], None]) -> Iterator[None]:
    """Call `stop` and `again` on signals while the block runs.

    Afterwards the signals are ignored: only the exit is left, and must not look like a failure.
    """
    loop = asyncio.get_running_loop()
    handlers = {signal.SIGTERM: stop, signal.SIGINT: stop, signal.SIGHUP: again}
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, handlers)  # so that the default never applies
        for number in handlers:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)
