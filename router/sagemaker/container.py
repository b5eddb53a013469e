"""Workers that keep sessions themselves: telling them that one begins or ends.

Two spellings are about. SageMaker's documentation, DJL, TorchServe and the library that vLLM uses
(model-hosting-container-standards) have `CLOSE`, choose the id, and refuse any field that they do
not know; the sticky session example of aws-samples has `CLOSE_SESSION` and an id of the client's.
What a client says is passed on as it is; if the worker answers 400 to it, it is said once more as
documented. The id comes back in either of two headers, with or without its expiry.
"""

from time import monotonic
from typing import NamedTuple

from router.errors import DoorError, Headers, Refused, WorkerError
from router.headers import header
from router.sessions import expiry
from router.sessions.ids import AWS_HEADER, NEW_SESSION
from router.worker import Worker

_NEW = b"x-amzn-sagemaker-new-session-id"
#: How a session begins, as documented.
OPENS = b'{"requestType":"NEW_SESSION"}'
CLOSES = b'{"requestType":"CLOSE"}'
#: Bytes of such an answer.
LARGEST = 64 << 10


class Said(NamedTuple):
    """What a worker answered."""

    status: int
    headers: Headers
    body: bytes


class Refusal(DoorError):
    """The worker did not do it."""

    status = 502

    def __init__(self, said: Said) -> None:
        super().__init__(said.body.decode("utf-8", errors="replace"))
        self.said = said


async def open_session(worker: Worker, body: bytes, identity: bytes) -> tuple[str, float | None]:
    """Begin a session there; return its id, and its end if the worker says so.

    Raises Refusal, and WorkerError if the worker cannot be asked.
    """
    said = await _tell(worker, body, OPENS, NEW_SESSION, identity)
    value = header(said.headers, _NEW) or header(said.headers, AWS_HEADER)
    key, expires = expiry.read(value.decode("latin-1"))
    if not key or key == "None":
        raise Refusal(Said(502, [], b"the worker named no session"))
    return key, expires


async def close_session(worker: Worker, body: bytes, key: str, identity: bytes) -> bytes:
    """End one there; return what it answered. Raises as `open_session`."""
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
        b"content-type: application/json\r\n%b: %b\r\n%bvia: 1.1 warmroute\r\n\r\n"
    ) % (worker.host, identity, len(body), AWS_HEADER, session.encode(), key)
    mark = worker.breaker.began(monotonic())
    try:
        connection = await worker.upstream.ask(head, body)
        try:
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
