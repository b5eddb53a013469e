"""boto3 in a separate environment for each generation, and the results of its calls."""

import gzip
import json
import os
import sys
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any, NamedTuple, Self

from tests.sdk.driven import Driven
from tests.sdk.installed import installed

#: The oldest with SessionId in InvokeEndpoint, the last before retries changed, and the newest.
GENERATIONS = {"1.35": "1.35.15", "1.43": "1.43.127", "1.44": "1.44.5"}
HERE = Path(__file__).parent


class Reply(NamedTuple):
    """The result of one call."""

    status: int
    headers: dict[str, str]
    output: dict[str, Any]
    """What boto3 returns, without body and metadata."""
    body: bytes
    parts: list[bytes]
    """The parts of an event stream, even if it failed later."""
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
    def failure(self) -> dict[str, Any]:
        """The exception; the call must have failed."""
        assert self.error is not None, f"no error, but {self.output}"
        return self.error

    @property
    def kind(self) -> str:
        """The exception's class."""
        return str(self.failure["class"])

    @property
    def code(self) -> str:
        """The exception's code."""
        return str(self.failure["response"]["Error"]["Code"])

    @property
    def message(self) -> str:
        """The exception's message."""
        return str(self.failure["response"]["Error"]["Message"])

    @property
    def refusal(self) -> int:
        """The exception's HTTP status."""
        return int(self.failure["response"]["ResponseMetadata"]["HTTPStatusCode"])


class Boto(Driven):
    """One generation of boto3."""

    def __init__(self, generation: str, **environment: str) -> None:
        """`environment` is added to this process's, without what that says of AWS."""
        version = GENERATIONS[generation]
        self.generation = generation
        self.folder = installed(f"boto3/{version}", f"boto3=={version}", f"botocore=={version}")
        own = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "PYTHONPATH"))}
        # Ignore this machine's settings, and do not look for credentials anywhere.
        own |= {
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }
        script = HERE / "requests_of.py"
        command = (sys.executable, "-P", "-W", "ignore", script, self.folder)
        super().__init__(*command, env=own | environment)

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
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        arguments = {"EndpointName": "llama", **arguments, "Body": b64encode(data).decode()}
        order = {"url": url, "operation": operation, "arguments": arguments}
        return self.begin({**order, **(options or {})})

    def reply(self, number: int) -> Reply:
        """Wait for a call to end."""
        told = self.result(number)
        return Reply(
            told.get("status", 0),
            told.get("headers", {}),
            told.get("output", {}),
            b64decode(told.get("body", "")),
            [b64decode(part) for part in told["parts"]],
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
