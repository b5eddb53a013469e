"""Starting such workers, in an environment of their own."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from tests.sdk.installed import installed
from tests.support import until

WANTED = ("model-hosting-container-standards==0.1.16", "uvicorn==0.54.0")
HERE = Path(__file__).parent


class Container:
    """One worker in a process of its own."""

    def __init__(self, folder: Path, *, sessions: bool = True, lifetime_s: int = 600) -> None:
        """`folder` is where it stores its sessions."""
        listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        environment |= {
            "SAGEMAKER_ENABLE_STATEFUL_SESSIONS": str(sessions).lower(),
            "SAGEMAKER_SESSIONS_PATH": str(folder),
            "SAGEMAKER_SESSIONS_EXPIRATION": str(lifetime_s),
        }
        with listener:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    HERE / "worker.py",
                    installed("containers/0.1.16", *WANTED),
                    str(listener.fileno()),
                ],
                pass_fds=(listener.fileno(),),
                env=environment,
            )
        until(self._well, 30)

    def _well(self) -> bool:
        assert self._process.poll() is None, "it did not start"
        try:
            return httpx.get(f"{self.url}/health").status_code == 200
        except httpx.TransportError:
            return False

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def seen(self) -> list[dict[str, Any]]:
        """Return the requests that reached its handler."""
        return list(httpx.get(f"{self.url}/seen").json())

    def kill(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.wait(10)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Kill it."""
        self.kill()
