"""boto3 in a separate environment for each generation, and the results of its calls."""

import fcntl
import gzip
import itertools
import json
import os
import queue
import subprocess
import sys
import threading
from base64 import b64decode, b64encode
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

#: The oldest with SessionId in InvokeEndpoint, the last before retries changed, and the newest.
GENERATIONS = {"1.35": "1.35.15", "1.43": "1.43.127", "1.44": "1.44.5"}
HERE = Path(__file__).parent
#: In the tests' own environment, beside what pip has installed there.
THERE = Path(sys.prefix) / "boto3"
#: Timeout of every wait, in seconds.
PATIENCE_S = 60.0


def install(generation: str) -> Path:
    """Install a generation if it is missing; return its folder. Concurrent runs take turns."""
    version = GENERATIONS[generation]
    folder = THERE / version
    THERE.mkdir(exist_ok=True)
    with (THERE / f".lock-{version}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / ".whole").exists():
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder)]
            wanted = [f"boto3=={version}", f"botocore=={version}"]
            done = subprocess.run(
                [*command, "--disable-pip-version-check", "--upgrade", *wanted],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise RuntimeError(f"pip could not install boto3 {version}:\n{done.stderr}")
            (folder / ".whole").touch()
    return folder


class Reply(NamedTuple):
    """The result of one call."""

    status: int
    headers: dict[str, str]
    output: dict[str, Any]
    """What boto3 returns, without body and metadata."""
    body: bytes
    parts: list[bytes]
    """The parts of an event stream, even if it failed later."""
    times: list[float]
    """When each part arrived."""
    sent: list[dict[str, str]]
    """The header of every HTTP request, including retries."""
    error: dict[str, Any] | None

    @property
    def worker(self) -> str:
        """The worker that answered."""
        return self.headers.get("x-warmroute-worker", "")

    @property
    def json(self) -> Any:
        """The body, decoded."""
        return json.loads(self.body)

    @property
    def good(self) -> Self:
        """The reply itself; the call must not have failed."""
        assert self.error is None, self.error
        return self

    @property
    def kind(self) -> str:
        """The exception's class; the call must have failed."""
        assert self.error is not None, f"no error, but {self.output}"
        return str(self.error["class"])

    @property
    def code(self) -> str:
        """The exception's code."""
        assert self.error is not None, f"no error, but {self.output}"
        return str(self.error["response"]["Error"]["Code"])

    @property
    def message(self) -> str:
        """The exception's message."""
        assert self.error is not None, f"no error, but {self.output}"
        return str(self.error["response"]["Error"]["Message"])

    @property
    def refusal(self) -> int:
        """The exception's HTTP status."""
        assert self.error is not None, f"no error, but {self.output}"
        return int(self.error["response"]["ResponseMetadata"]["HTTPStatusCode"])


class Boto:
    """One generation of boto3 in a process of its own; many calls may run at once."""

    def __init__(self, generation: str) -> None:
        self.generation = generation
        self.folder = install(generation)
        environment = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
        environment.pop("PYTHONPATH", None)
        # Ignore this machine's settings, and do not look for credentials anywhere.
        environment |= {
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }
        self._environment = environment
        self._start()

    def _start(self, **environment: str) -> None:
        self._ids = itertools.count(1)
        self._replies: dict[int, queue.SimpleQueue[dict[str, Any]]] = {}
        self._parts: dict[int, queue.SimpleQueue[int]] = {}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-W", "ignore", HERE / "requests_of.py", str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self._environment | environment,
        )
        assert self._process.stdout is not None
        self.version = json.loads(self._process.stdout.readline())["version"]
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            if "part" in told:
                self._parts[told["id"]].put(told["part"])
            else:
                self._replies[told["id"]].put(told)

    def start(
        self,
        url: str | None,
        operation: str,
        body: object,
        *,
        options: dict[str, Any] | None = None,
        **arguments: Any,
    ) -> int:
        """Make a call; return its number. A body that is not bytes is sent as JSON."""
        number = next(self._ids)
        self._replies[number], self._parts[number] = queue.SimpleQueue(), queue.SimpleQueue()
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        arguments = {"EndpointName": "llama", **arguments, "Body": b64encode(data).decode()}
        order = {"id": number, "url": url, "operation": operation, "arguments": arguments}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({**order, **(options or {})}) + "\n")
        self._process.stdin.flush()
        return number

    def part(self, number: int) -> int:
        """Wait for the next part of an event stream; return its number."""
        return self._parts[number].get(timeout=PATIENCE_S)

    def reply(self, number: int) -> Reply:
        """Wait for a call to end."""
        told = self._replies[number].get(timeout=PATIENCE_S)
        return Reply(
            told.get("status", 0),
            told.get("headers", {}),
            told.get("output", {}),
            b64decode(told.get("body", "")),
            [b64decode(part) for part in told["parts"]],
            told["times"],
            told["sent"],
            told.get("error"),
        )

    def invoke(self, url: str | None, body: object, **arguments: Any) -> Reply:
        """Call `invoke_endpoint`."""
        return self.reply(self.start(url, "invoke_endpoint", body, **arguments))

    def stream(self, url: str | None, body: object, **arguments: Any) -> Reply:
        """Call `invoke_endpoint_with_response_stream`, and read it to the end."""
        return self.reply(
            self.start(url, "invoke_endpoint_with_response_stream", body, **arguments)
        )

    def shape(self, name: str) -> dict[str, Any]:
        """Return a shape of this generation's service model."""
        path = "botocore/data/sagemaker-runtime/2017-05-13/service-2.json.gz"
        shapes: dict[str, Any] = json.loads(gzip.decompress((self.folder / path).read_bytes()))
        return dict(shapes["shapes"][name])

    def told(self, **environment: str) -> Self:
        """Restart with these environment variables."""
        self.close()
        self._start(**environment)
        return self

    def close(self) -> None:
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the process."""
        self.close()
