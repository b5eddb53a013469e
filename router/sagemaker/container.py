"""Workers that keep sessions themselves: telling them that one begins or ends.

Two spellings are about. SageMaker's documentation, DJL, TorchServe and the library that vLLM uses
(model-hosting-container-standards) have `CLOSE`, choose the id, and refuse any field that they do
not know; the sticky session example of aws-samples has `CLOSE_SESSION` and an id of the client's.
What a client says is passed on as it is; if the worker answers 400 to it, it is said once more as
documented. The id comes back in either of two headers, with or without its expiry.
"""

from typing import NamedTuple

import msgspec

from router.errors import DoorError, Headers, WorkerError, answer_for
from router.fleet import Worker
from router.headers import header
from router.sessions import expiry
from router.sessions.ids import AWS_HEADER, NEW_SESSION

_NEW = b"x-amzn-sagemaker-new-session-id"
#: Bytes of such an answer.
LARGEST = 64 << 10


class Said(NamedTuple):
    """What a worker answered."""

    status: int
    headers: Headers
    body: bytes


class Refusal(DoorError):
    """The worker did not do it."""

    def __init__(self, said: Said) -> None:
        super().__init__(said.body.decode("utf-8", errors="replace"))
        self.said = said


async def open_session(worker: Worker, body: bytes, identity: bytes) -> tuple[str, float | None, bytes]:
    """Begin a session there: its id, its end if the worker says so, and what it answered.

    Raises Refusal, and a DoorError if the worker cannot be asked.
    """
    said = await _tell(worker, body, "NEW_SESSION", NEW_SESSION, identity)
    value = header(said.headers, _NEW) or header(said.headers, AWS_HEADER)
    id, expires = expiry.read(value.decode("latin-1"))  # noqa: A001 - the field's word
    if not id or id == "None":
        raise Refusal(Said(502, [], b"the worker named no session"))
    return id, expires, said.body


async def close_session(worker: Worker, body: bytes, id: str, identity: bytes) -> bytes:  # noqa: A002
    """End one there; return what it answered. Raises as `open_session`."""
    return (await _tell(worker, body, "CLOSE", id, identity)).body


async def _tell(worker: Worker, body: bytes, word: str, id: str, identity: bytes) -> Said:  # noqa: A002
    documented = msgspec.json.encode({"requestType": word})
    said = await _ask(worker, body, id, identity)
    if said.status == 400 and body != documented:
        said = await _ask(worker, documented, id, identity)
    if said.status >= 300:
        raise Refusal(said)
    return said


async def _ask(worker: Worker, body: bytes, id: str, identity: bytes) -> Said:  # noqa: A002
    key = b"authorization: Bearer %b\r\n" % worker.api_key if worker.api_key else b""
    head = (
        b"POST /invocations HTTP/1.1\r\nhost: %b\r\nx-request-id: %b\r\ncontent-length: %d\r\n"
        b"content-type: application/json\r\n%b: %b\r\n%bvia: 1.1 warmroute\r\n\r\n"
    ) % (worker.host, identity, len(body), AWS_HEADER, id.encode(), key)
    try:
        connection = await worker.upstream.ask(head, body)
        try:
            answer = b""
            while piece := await connection.chunk():
                answer += piece
                if len(answer) > LARGEST:
                    break
            return Said(connection.head.status, connection.head.headers, answer)
        finally:
            worker.upstream.release(connection)
    except WorkerError as error:
        raise answer_for(error, worker.name) from None
