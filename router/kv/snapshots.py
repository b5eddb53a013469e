"""A controller's index on disk: read at the start, written periodically and at the end.

It is copied between two events, and a thread writes the copy. If the disk is full or the folder not
writable, that is logged and counted, and the controller goes on.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import suppress
from os import fsync
from pathlib import Path
from time import monotonic, time

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from controller.index.snapshot import (
    BadSnapshot,
    IndexCopy,
    copy_index,
    decode_snapshot,
    encode_snapshot,
)
from controller.kv_memory import KvMemory

log = logging.getLogger("warmroute.controller")


class CannotRestore(Exception):
    """No snapshot can be read or written there; the message is a sentence saying why."""


class Snapshots:
    """One snapshot file, written by one thread at a time."""

    def __init__(self, memory: KvMemory, file: Path) -> None:
        self.written = self.failed = 0
        """Snapshots that were written, and that failed."""
        self.last = 0.0
        """When the last one was written, in seconds since the epoch; 0 if none was."""
        self.bytes = 0
        self.seconds = 0.0
        """Size of the last one, and how long it took."""
        self._memory = memory
        self._file = file
        self._fresh = file.with_name(f"{file.name}.new")
        self._writing: asyncio.Task[bool] | None = None

    def restore(self) -> None:
        """Read the snapshot, if there is one. Raises CannotRestore if the folder is unusable.

        A file that is not a snapshot, or is one of another release, is set aside: starting with an
        empty index is better than not starting.
        """
        try:
            with self._fresh.open("wb"):  # check now, not only when there is an index to lose
                pass
            self._fresh.unlink()
            if self._file.exists():
                self._take()
        except OSError as error:
            why = error.strerror or str(error)
            raise CannotRestore(f"snapshot {self._file} cannot be kept there: {why}") from None

    def _take(self) -> None:
        """Adopt the snapshot, or set it aside if it is bad. Raises OSError."""
        try:
            self._memory.adopt(*decode_snapshot(self._file.read_bytes()))
        except BadSnapshot as error:
            aside = self._file.with_name(f"{self._file.name}.bad")
            self._file.replace(aside)
            log.error(
                "%s: %s; the index starts empty, the damaged file is kept as %s",
                self._file,
                error,
                aside,
            )

    async def write(self) -> bool:
        """Write a snapshot, after any that is being written; return whether that worked."""
        while self._writing is not None:
            await asyncio.wait([self._writing])
        copied = copy_index(self._memory.index.holdings, self._memory.where())
        self._writing = asyncio.create_task(self._write(copied))
        return await asyncio.shield(self._writing)  # a thread cannot be cancelled

    async def keep_writing(self, every: float) -> None:
        """Write a snapshot every `every` seconds, until cancelled."""
        while True:
            await asyncio.sleep(every)
            await self.write()

    async def _write(self, copied: IndexCopy) -> bool:
        start = monotonic()
        try:
            self.bytes = await asyncio.to_thread(self._put, copied)
        except Exception as error:  # noqa: BLE001 - if it is our own bug, the next one may work
            self.failed += 1
            why = f"unexpected {type(error).__name__}"
            if isinstance(error, OSError):
                why = error.strerror or str(error)
            log.error("snapshot %s: not written: %s", self._file, why)
            return False
        finally:
            self._writing = None
        self.written += 1
        self.last, self.seconds = time(), monotonic() - start
        return True

    def _put(self, copied: IndexCopy) -> int:
        """Write the file atomically. Raises OSError."""
        data = encode_snapshot(copied)
        try:
            with self._fresh.open("wb") as out:
                out.write(data)
                out.flush()
                fsync(out.fileno())  # otherwise a power failure may leave an empty file
            self._fresh.replace(self._file)
        except OSError:
            with suppress(OSError):
                self._fresh.unlink()
            raise
        return len(data)

    def metrics(self) -> Iterator[Metric]:
        """Yield metrics on the snapshots."""
        outcomes = CounterMetricFamily(
            "warmroute_controller_snapshots",
            "Snapshots, by whether they could be written.",
            labels=("outcome",),
        )
        outcomes.add_metric(("written",), self.written)
        outcomes.add_metric(("failed",), self.failed)
        yield outcomes
        for name, text, value in (
            (
                "timestamp_seconds",
                "When the last snapshot was written, in seconds since the epoch; 0 if none was.",
                self.last,
            ),
            ("seconds", "How long the last snapshot took.", self.seconds),
            ("bytes", "Size of the last snapshot.", self.bytes),
        ):
            yield GaugeMetricFamily(f"warmroute_controller_snapshot_{name}", text, value)
