"""Server-sent events: how they end, the last one of a stream, and the router's own comments.

Sends comments in a stream whose worker is still silent, so that no load balancer closes it.

A long prompt can take a minute to compute, and load balancers cut connections that are silent for
so long. The price: the status is 200 from the first comment on, and a later error is sent as an
event.
"""

import asyncio

from router.api.endpoints import Endpoint, Prompted
from router.http.exchange import Exchange, date_line

#: An event ends with an empty line, and lines end in three ways (WHATWG HTML section 9.2.5).
EVENT_ENDS = (b"\n\n", b"\n\r\n", b"\r\r", b"\r\r\n")
#: A comment, which every client skips (WHATWG HTML section 9.2.5).
COMMENT = b": waiting\n\n"
#: The header lines of a stream that begins before its worker has answered.
STREAM_FIELDS = b"content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"

_Lines = tuple[bytes, tuple[bytes, ...]]
"""A field, and values that it has in a stream's last event."""
_DONE: _Lines = (b"data:", (b"[DONE]",))
#: Engines may go on after an error, but clients do not (vLLM `entrypoints/anthropic/serving.py`).
_MESSAGE: _Lines = (b"event:", (b"message_stop", b"error"))
_RESPONSE: _Lines = (
    b"event:",
    (b"response.completed", b"response.incomplete", b"response.failed", b"error"),
)
#: How the last events of `/v1/responses` begin.
RESPONSE_ENDS = tuple(
    _RESPONSE[0] + space + value for value in _RESPONSE[1] for space in (b" ", b"")
)


def has_last(endpoint: Endpoint, data: bytes) -> bool:
    """Whether one of these whole lines is the beginning of a stream's last event.

    Text that speaks of it does not count: in JSON no line ends within text.
    """
    field, values = _DONE
    if endpoint.prompted is Prompted.RESPONSES:
        field, values = _RESPONSE
    elif endpoint.prompted is Prompted.MESSAGES:
        field, values = _MESSAGE
    return any(_has_line(data, field, value) for value in values)


def _has_line(data: bytes, field: bytes, value: bytes) -> bool:
    at = data.find(value)
    while at >= 0:
        end = at + len(value)
        line = max(data.rfind(b"\n", 0, at), data.rfind(b"\r", 0, at)) + 1
        if data[end : end + 1] in {b"\n", b"\r"} and data[line:at].rstrip(b" ") == field:
            return True
        at = data.find(value, end)
    return False


def only_comments(data: bytes) -> bool:
    """Whether a stream that begins with `data` has sent nothing but comments so far.

    vLLM's are `: keep-alive`, while a request waits or is computed (`--sse-keep-alive-interval`).
    """
    return all(line[:1] in {b"", b":"} for line in data.splitlines())


class Comments:
    """Context manager that sends a comment every `every` seconds until the answer begins."""

    __slots__ = ("_every", "_exchange", "_loop", "_timer")

    def __init__(self, exchange: Exchange, every: float) -> None:
        self._exchange = exchange
        self._every = every
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> None:
        self._timer = self._loop.call_later(self._every, self._write)

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def _write(self) -> None:
        exchange = self._exchange
        if exchange.ended or (exchange.started and not exchange.commented):
            return
        if exchange.session is not None and exchange.session.begins and not exchange.commented:
            pass  # a new session's id goes into the header, and is not known to be there yet
        elif exchange.commented:
            exchange.write(COMMENT, last=False)
        else:
            exchange.commented = True
            fields = STREAM_FIELDS + b"x-request-id: %b\r\n" % exchange.identity + date_line()
            exchange.start(200, fields, None, COMMENT, last=False)
        self._timer = self._loop.call_later(self._every, self._write)
