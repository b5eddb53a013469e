"""Server-sent events: how they end, and the comments that the router sends."""

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
