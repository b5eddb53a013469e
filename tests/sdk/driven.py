"""A client in a process of its own, driven by lines of JSON."""

import itertools
import json
import queue
import subprocess
import threading
from types import TracebackType
from typing import Any, Self

#: Timeout of every wait, in seconds.
PATIENCE_S = 60.0


class Driven:
    """The process. Many calls may run at once; each has a number.

    It answers a call by lines with an `event`, and then one with the result.
    """

    def __init__(self, *command: object, env: dict[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            list(map(str, command)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env=env,
        )
        self._ids = itertools.count(1)
        self._events: dict[int, queue.SimpleQueue[Any]] = {}
        self._results: dict[int, queue.SimpleQueue[dict[str, Any]]] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            if "event" in told:
                self._events[told["id"]].put(told["event"])
            else:
                self._results[told["id"]].put(told)

    def tell(self, order: dict[str, Any]) -> None:
        """Write one line."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def begin(self, order: dict[str, Any]) -> int:
        """Make a call; return its number."""
        number = next(self._ids)
        self._events[number], self._results[number] = queue.SimpleQueue(), queue.SimpleQueue()
        self.tell({"id": number, **order})
        return number

    def event(self, number: int) -> Any:
        """Wait for the next event of a stream."""
        return self._events[number].get(timeout=PATIENCE_S)

    def result(self, number: int) -> dict[str, Any]:
        """Wait for a call to end."""
        return self._results[number].get(timeout=PATIENCE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the process by closing its input."""
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                raise
            self._reader.join(PATIENCE_S)
