"""What the signals of an operator mean: SIGTERM and SIGINT end, SIGHUP reads the settings again."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def obeying(stop: Callable[[], None], again: Callable[[], None]) -> Iterator[None]:
    """Call these at signals while the block runs.

    After it they mean nothing: what is left is to exit, and that shall not look like a failure.
    """
    loop = asyncio.get_running_loop()
    handlers = {signal.SIGTERM: stop, signal.SIGINT: stop, signal.SIGHUP: again}
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, handlers)  # not for a moment the default
        for number in handlers:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)
