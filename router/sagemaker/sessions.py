"""Opening and closing sessions at workers that keep them themselves.

There are two dialects. SageMaker's documentation, DJL, TorchServe and the library that vLLM uses
(model-hosting-container-standards) use `CLOSE`, choose the id, and refuse unknown fields. The
sticky session example of aws-samples uses `CLOSE_SESSION` and an id of the client's. The client's
body is passed on as it is; if the worker answers 400, the documented form is sent once. The id
comes back in either of two headers, with or without its expiry.
"""

from time import monotonic
from typing import NamedTuple

from router.api.errors import DoorError, Headers
from router.fleet.worker import Worker
from router.http.headers import header
from router.sessions import expiry
from router.sessions.ids import AWS_HEADER, NEW_SESSION
from router.upstream.errors import Redirected, Refused, WorkerError

_NEW = b"x-amzn-sagemaker-new-session-id"
#: The documented bodies that open and close a session.
OPENS = b'{"requestType":"NEW_SESSION"}'
CLOSES = b'{"requestType":"CLOSE"}'
#: Most bytes of an answer that are read.
LARGEST = 64 << 10


class Said(NamedTuple):
    """A worker's answer."""

    status: int
    headers: Headers
    body: bytes


class Refusal(DoorError):
    """The worker refused."""

    status = 502

    def __init__(self, said: Said) -> None:
        super().__init__(said.body.decode("utf-8", errors="replace"))
        self.said = said


async def open_session(worker: Worker, body: bytes, identity: bytes) -> tuple[str, float | None]:
    """Open a session at a worker; return its id, and its end if the worker says so.

    Raises Refusal, and WorkerError if the worker cannot be asked.
    """
    said = await _tell(worker, body, OPENS, NEW_SESSION, identity)
    value = header(said.headers, _NEW) or header(said.headers, AWS_HEADER)
    key, expires = expiry.read(value.decode("latin-1"))
    if not key or key == "None":
        raise Refusal(Said(502, [], b"the worker named no session"))
    return key, expires


async def close_session(worker: Worker, body: bytes, key: str, identity: bytes) -> bytes:
    """Close a session at a worker; return the worker's answer. Raises as `open_session`."""
    return (await _tell(worker, body, CLOSES, key, identity)).body


async def _tell(
    worker: Worker, body: bytes, documented: bytes, session: str, identity: bytes
) -> Said:
    said = await _ask(worker, body, session, identity)
    if said.status == 400 and body != documented:
        said = await _ask(worker, documented, session, identity)
    if said.status >= 300:
        raise Refusal(said)
    return said


async def _ask(worker: Worker, body: bytes, session: str, identity: bytes) -> Said:
    key = b"authorization: Bearer %b\r\n" % worker.api_key if worker.api_key else b""
    head = (
        b"POST /invocations HTTP/1.1\r\nhost: %b\r\nx-request-id: %b\r\ncontent-length: %d\r\n"
        b"content-type: application/json\r\naccept-encoding: identity\r\n%b: %b\r\n%b"
        b"via: 1.1 warmroute\r\n\r\n"
    ) % (worker.host, identity, len(body), AWS_HEADER, session.encode(), key)
    mark = worker.breaker.began(monotonic())
    try:
        connection = await worker.upstream.ask(head, body)
        try:
            if connection.head.redirects:
                raise Redirected(connection.head)
            answer = b""
            while piece := await connection.chunk():
                answer += piece
                if len(answer) > LARGEST:
                    break
            said = Said(connection.head.status, connection.head.headers, answer)
        finally:
            worker.upstream.release(connection)
    except WorkerError as error:
        if isinstance(error, Refused):
            if error.ours:
                worker.breaker.neutral(mark)
                raise
            worker.lost(str(error))
        worker.breaker.failed(monotonic(), mark, error.kind)
        raise
    except BaseException:
        worker.breaker.neutral(mark)
        raise
    worker.breaker.answered(monotonic(), mark, said.status)
    return said
