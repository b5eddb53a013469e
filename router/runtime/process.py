"""What a process is given: file descriptors, garbage collection, memory, and signals.

SIGTERM and SIGINT stop the router, SIGHUP reloads the settings.
"""

import asyncio
import ctypes
import gc
import logging
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger("warmroute.processes")

#: Allocations until the youngest generation is collected; a few requests reach Python's own 700.
GC_THRESHOLD = 20_000
#: glibc's mallopt: bytes kept at the top of the heap, and the size from which memory is mapped.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
TRIM_THRESHOLD_BYTES, MMAP_THRESHOLD_BYTES = 32 << 20, 32 << 20
#: Seconds without a large request after which the memory of earlier ones is returned.
TRIM_DELAY_S = 15.0
#: Seconds for which a thread may keep the GIL while the event loop wants it; Python's own are ten
#: times as many, and the loop takes it several times for each request.
SWITCH_S = 0.0005
#: Descriptors needed besides those of connections.
RESERVED_DESCRIPTORS = 64


def raise_descriptors(connections: int) -> None:
    """Raise the descriptor limit as far as allowed, and warn if that is too few.

    Every client connection may need another one to a worker. Without a descriptor, a connection is
    not accepted, and its client gets no answer at all.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and hard < 2 * connections + RESERVED_DESCRIPTORS:
        log.warning(
            "at most %d file descriptors may be open, but clients.connections: %d may need %d;"
            " raise the limit (ulimit -Hn) or allow fewer connections",
            hard,
            connections,
            2 * connections + RESERVED_DESCRIPTORS,
        )


def settle() -> None:
    """Tune threads, garbage collection and malloc for serving. Called once, when serving begins.

    A full collection walks all live objects, some hundred thousand from settings and FastAPI, and
    blocks the loop for tens of milliseconds. They live as long as the process, so they are frozen.
    The young generation is collected less often, because requests leave hardly any cycles. And the
    memory of a long prompt is not returned to the system before the next one comes, if that comes
    soon (`trim_memory`): mapping and clearing its pages again costs more than reading the prompt.
    """
    sys.setswitchinterval(SWITCH_S)
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 10, 50)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # not every libc has it
        mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)
        mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)


async def trim_memory(ended: Callable[[], int]) -> None:
    """Return free memory to the system each time that large requests have ended and no other has
    since; `ended` returns how many have."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    before = done = ended()
    while trim is not None:
        await asyncio.sleep(TRIM_DELAY_S)
        now = ended()
        if now == before != done:
            done = now
            await asyncio.to_thread(trim, 0)
        before = now


@contextmanager
def signal_handlers(stop: Callable[[], None], again: Callable[[], None]) -> Iterator[None]:
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
