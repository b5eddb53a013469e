"""Server-sent events made by the router: errors in a stream's own format, and comments."""

import msgspec

from router.openai import Endpoint, Prompted

#: An event ends with an empty line, and lines end in three ways (WHATWG HTML section 9.2.5).
EVENT_ENDS = (b"\n\n", b"\n\r\n", b"\r\r", b"\r\r\n")
#: A comment, which every client skips (WHATWG HTML section 9.2.5).
COMMENT = b": waiting\n\n"
#: The header lines of a stream that begins before its worker has answered.
FIELDS = b"content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"


def only_comments(data: bytes) -> bool:
    """Whether a stream that begins with `data` has sent nothing but comments so far.

    vLLM's are `: keep-alive`, while a request waits or is computed (`--sse-keep-alive-interval`).
    """
    return all(line[:1] in {b"", b":"} for line in data.splitlines())


def error_event(endpoint: Endpoint, message: str, code: str, kind: str) -> bytes:
    """Render an error as one event, in place of `[DONE]`; `kind` is the error's type.

    OpenAI's clients raise on a data object with the key `error`; the streams of `/v1/responses` and
    `/v1/messages` also need an event name.
    """
    body: dict[str, object] = {
        "error": {"message": message, "type": kind, "param": None, "code": code}
    }
    named = endpoint.prompted in (Prompted.MESSAGES, Prompted.RESPONSES)
    if named:
        body = {"type": "error", **body}
    text = b"data: " + msgspec.json.encode(body) + b"\n\n"
    return b"event: error\n" + text if named else text
