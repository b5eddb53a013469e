"""The memory of large requests goes back to the system once there are no more of them."""

import asyncio
import ctypes
import multiprocessing
import sys
from pathlib import Path
from time import monotonic

import pytest

from router.runtime import process

#: Pieces of memory that are freed, between others that are not.
PIECES, SIZE = 2000, 100_000
#: The quiet time: much longer than between the ends of two requests, even on a busy machine.
DELAY_S = 1.0

pytestmark = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "malloc_trim") or sys.platform != "linux",
    reason="this libc keeps memory, or returns it, by itself",
)


def resident() -> int:
    """This process's resident memory in bytes."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) << 10


async def scene() -> None:
    """Free memory between kept pieces, while large requests end and after the last one."""
    ended = 0
    giving = asyncio.create_task(process.trim_memory(lambda: ended))
    pieces = [b"x" * (SIZE if number % 2 else 3000) for number in range(2 * PIECES)]
    kept = pieces[::2]
    full = resident()
    del pieces
    until = monotonic() + 3 * DELAY_S
    while monotonic() < until:
        ended += 1
        await asyncio.sleep(0.01)
    assert resident() > full - PIECES * SIZE / 2
    while resident() > full - 0.8 * PIECES * SIZE:  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0.01)
    assert len(kept) == PIECES
    giving.cancel()


def in_a_process() -> None:
    """Play the scene with memory settings as when serving, and a short quiet time."""
    process.TRIM_DELAY_S = DELAY_S
    process.settle()
    asyncio.run(asyncio.wait_for(scene(), 20))


def test_after_the_last_one() -> None:
    """It stays while large requests go on, and is back a while after the last one.

    In a process of its own: what other tests freed would move the kept pieces elsewhere.
    """
    child = multiprocessing.get_context("spawn").Process(target=in_a_process)
    child.start()
    child.join(60)
    child.kill()
    assert child.exitcode == 0
