"""Errors as boto3 reads them: the type in a header and in the body, the message in the body.

botocore takes the type from `x-amzn-errortype` or `__type`, and the message from `Message` or
`message` (`botocore/parsers.py`, `BaseJSONParser`); in any other form its caller sees an empty
message. Of the errors made here, it retries only 500, 503 and ThrottlingException
(`botocore/retries/standard.py`), so a request that must not be sent again never gets one of these.
"""

from typing import NamedTuple

import msgspec

from router.api.errors import (
    DoorError,
    Headers,
    SessionExists,
    SessionLost,
    UnknownPath,
    UnknownSession,
)

#: Most bytes of a worker's error that are passed on.
LONGEST = 8 << 10


class AwsError(NamedTuple):
    """An error answer in AWS's form."""

    status: int
    type: str
    body: bytes
    headers: Headers

    def fields(self) -> bytes:
        """Return the header lines of the error."""
        extra = b"".join([b"%b: %b\r\n" % pair for pair in self.headers])
        kind = self.type.encode()
        return b"content-type: application/json\r\nx-amzn-errortype: %b\r\n%b" % (kind, extra)


#: Our status codes, with AWS's status code and error type.
_TYPES = {
    400: (400, "ValidationError"),
    401: (403, "AccessDeniedException"),
    403: (403, "AccessDeniedException"),
    404: (400, "ValidationError"),
    429: (429, "ThrottlingException"),
    500: (500, "InternalFailure"),
    501: (400, "ValidationError"),
    503: (503, "ServiceUnavailable"),
}
_SESSION = (UnknownSession, SessionExists, SessionLost)


def told(error: DoorError) -> AwsError:
    """Convert an error of the router's to AWS's form."""
    if isinstance(error, _SESSION):
        return _error(400, "ValidationError", error.message)
    if isinstance(error, UnknownPath):
        return _error(404, "UnknownOperationException", error.message)
    if error.status in {502, 504}:  # a worker's: it may have run, so no retries
        return model_error(error.status, error.message)
    known = _TYPES.get(error.status, (error.status, "ValidationError"))
    if error.status >= 500 and error.status not in _TYPES:
        known = (500, "InternalFailure")
    headers = [pair for pair in error.headers if pair[0] != b"www-authenticate"]
    return _error(*known, error.message, headers=headers)


def model_error(status: int, message: str) -> AwsError:
    """Return the error for a worker's error (shape ModelError): 424, which is never retried."""
    said = (
        f"Received {'client' if status < 500 else 'server'} error ({status}) from the worker with"
        f" message {message!r}."
    )
    more = {"OriginalStatusCode": status, "OriginalMessage": message, "LogStreamArn": ""}
    return _error(424, "ModelError", said, more)


def stream_error(message: str, code: str = "StreamBroken") -> bytes:
    """Return the payload of an exception in an event stream (shape ModelStreamError)."""
    return msgspec.json.encode({"Message": message, "ErrorCode": code})


def _error(
    status: int,
    kind: str,
    message: str,
    more: dict[str, object] | None = None,
    headers: Headers | None = None,
) -> AwsError:
    body = msgspec.json.encode(
        {"__type": kind, "Message": message, "message": message} | (more or {})
    )
    return AwsError(status, kind, body, headers or [])
