"""How each surface of the API writes an error of the router: as an answer, and in a stream.

The path decides which surface that is, so an error that comes before anything else of a request is
known has the right shape too. Errors that a worker answers pass as they are.
"""

import re
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from router.api.errors import (
    APIError,
    Headers,
    SessionExists,
    SessionLost,
    UnknownPath,
    UnknownSession,
)


class Surface(StrEnum):
    """Whose shape errors have."""

    OPENAI = "OPENAI"
    ANTHROPIC = "ANTHROPIC"
    COHERE = "COHERE"
    OLLAMA = "OLLAMA"
    AWS = "AWS"


class ErrorResponse(NamedTuple):
    """An error as an answer."""

    status: int
    fields: bytes
    """Its header lines, but for those of every answer."""
    body: bytes
    id_field: bytes
    """The name under which its clients look for the request's id; may be empty."""


#: Surfaces by path; whatever is none of these is OpenAI's. They match with a `/v1` too many or too
#: few, and below SageMaker's `/openai/`. vLLM's `/v2/rerank` and `/v2/embed` are Cohere's, but
#: their errors are OpenAI's (vllm/entrypoints/pooling).
_BY_PATH: Final = (
    (
        re.compile(  # SageMaker's, whatever their prefix, but for those below `/openai/`
            r"^(?!.*?/endpoints/[^/]+(?:/inference-components/[^/]+)?/openai/)"
            r".*(?:/endpoints/|/invocations$)"
        ),
        Surface.AWS,
    ),
    (re.compile(r"(?:^|/v1)/messages(?:/|$)"), Surface.ANTHROPIC),
    (re.compile(r"^/cohere/"), Surface.COHERE),
    (re.compile(r"^/api/(?:chat|generate|show|tags)$"), Surface.OLLAMA),
)
#: Anthropic's types by status (its API reference, "Errors"). 408 and 503 are not in it: 503 is what
#: others call 529.
_ANTHROPIC: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_JSON: Final = b"content-type: application/json\r\n"


def surface_of(path: str) -> Surface:
    """Return the surface that a path belongs to, whether or not it is served."""
    surfaces = (surface for pattern, surface in _BY_PATH if pattern.search(path))
    return next(surfaces, Surface.OPENAI)


def error_response(path: str, error: APIError, identity: bytes) -> ErrorResponse:
    """Write an error as the answer to a request to `path` with that id."""
    surface = surface_of(path)
    if surface is Surface.AWS:
        aws = aws_error(error)
        return ErrorResponse(aws.status, aws.fields(), aws.body, b"x-amzn-requestid")
    extra = b"".join([b"%b: %b\r\n" % pair for pair in error.headers])
    if surface is Surface.OPENAI:
        return ErrorResponse(error.status, _JSON + extra, error.body(), b"")
    body: dict[str, object] = {"error": error.message}
    id_field = b""
    if surface is Surface.ANTHROPIC:
        body, id_field = _anthropic(error, identity), b"request-id"
    elif surface is Surface.COHERE:
        body = {"message": error.message, "id": identity.decode()}
    return ErrorResponse(error.status, _JSON + extra, msgspec.json.encode(body), id_field)


def error_event(path: str, error: APIError, identity: bytes) -> bytes:
    """Write an error as the last event of a stream at `path`, in place of `[DONE]`.

    OpenAI's clients raise on a data object with the key `error`; the streams of `/v1/responses` and
    `/v1/messages` also need an event name.
    """
    surface = surface_of(path)
    if surface is Surface.ANTHROPIC:
        return _named(_anthropic(error, identity))
    if surface is Surface.COHERE:  # as vLLM does (vllm/entrypoints/cohere/serving.py)
        ended = {"error": error.message, "finish_reason": "ERROR"}
        return _data({"type": "message-end", "delta": ended})
    code = error.code or str(error.status)
    body: dict[str, object] = {
        "error": {"message": error.message, "type": error.type, "param": None, "code": code}
    }
    return _named({"type": "error", **body}) if path == "/v1/responses" else _data(body)


def _anthropic(error: APIError, identity: bytes) -> dict[str, object]:
    """Return an error of Anthropic's; its object also has our `param` and `code`, if any."""
    other = "api_error" if error.type == "server_error" else error.type
    kind = _ANTHROPIC.get(error.status, other)
    ours = {"param": error.param, "code": error.code}
    details = {"type": kind, "message": error.message}
    details |= {name: value for name, value in ours.items() if value is not None}
    return {"type": "error", "error": details, "request_id": identity.decode()}


def _data(body: dict[str, object]) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def _named(body: dict[str, object]) -> bytes:
    return b"event: error\n" + _data(body)


# SageMaker's errors, as boto3 reads them. botocore takes the type from `x-amzn-errortype` or
# `__type`, and the message from `Message` or `message` (`botocore/parsers.py`, `BaseJSONParser`);
# in any other form its caller sees an empty message. Of the errors made here, it retries only 500,
# 503 and ThrottlingException (`botocore/retries/standard.py`), so a request that must not be sent
# again never gets one of these.


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
_AWS = {
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


def aws_error(error: APIError) -> AwsError:
    """Convert an error of the router's to AWS's form."""
    if isinstance(error, _SESSION):
        return _as_aws(400, "ValidationError", error.message)
    if isinstance(error, UnknownPath):
        return _as_aws(404, "UnknownOperationException", error.message)
    if error.status in {502, 504}:  # a worker's: it may have run, so no retries
        return model_error(error.status, error.message)
    known = _AWS.get(error.status, (error.status, "ValidationError"))
    if error.status >= 500 and error.status not in _AWS:
        known = (500, "InternalFailure")
    headers = [pair for pair in error.headers if pair[0] != b"www-authenticate"]
    return _as_aws(*known, error.message, headers=headers)


def model_error(status: int, message: str) -> AwsError:
    """Return the error for a worker's error (shape ModelError): 424, which is never retried."""
    sentence = (
        f"Received {'client' if status < 500 else 'server'} error ({status}) from the worker with"
        f" message {message!r}."
    )
    more = {"OriginalStatusCode": status, "OriginalMessage": message, "LogStreamArn": ""}
    return _as_aws(424, "ModelError", sentence, more)


def stream_error(message: str, code: str = "StreamBroken") -> bytes:
    """Return the payload of an exception in an event stream (shape ModelStreamError)."""
    return msgspec.json.encode({"Message": message, "ErrorCode": code})


def _as_aws(
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
