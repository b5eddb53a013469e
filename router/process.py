"""What one process asks of its system: descriptors, and memory that is not given back at once."""

import ctypes
import gc
import logging
import resource

log = logging.getLogger("warmroute.processes")

#: Containers made until the young are looked at; Python's own 700 is reached by a few requests.
YOUNG = 20_000
#: glibc's mallopt: what is kept at the top of the heap, and from what size on memory is mapped.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT, MAPPED = 32 << 20, 32 << 20
#: Descriptors besides those of connections.
OTHERS = 64


def raise_descriptors(connections: int) -> None:
    """Ask for as many descriptors as may be had, and say so if they are too few.

    Every connection of a client may need another one to a worker. For want of a descriptor a
    connection is not accepted, and its client hears nothing at all.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and hard < 2 * connections + OTHERS:
        log.warning(
            "at most %d file descriptors may be open, but clients.connections: %d may need %d;"
            " raise the limit (ulimit -Hn) or allow fewer connections",
            hard,
            connections,
            2 * connections + OTHERS,
        )


def settle() -> None:
    """Set aside what is alive now, and keep memory for the next request. Called once, serving.

    A full collection walks everything that is alive, some hundred thousand objects of the
    settings' and FastAPI's making, and stops the loop for tens of milliseconds; they live as long
    as the process, so they are set aside. The young are looked at less often, since requests
    leave hardly any cycles. And what a long prompt took is not given back to the system before
    the next one comes: mapping and clearing its pages anew costs more than reading it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, 10, 50)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # not every libc has it
        mallopt(M_TRIM_THRESHOLD, KEPT)
        mallopt(M_MMAP_THRESHOLD, MAPPED)
