"""Sends comments in a stream whose worker is still silent, so that no load balancer closes it.

A long prompt can take a minute to compute, and load balancers cut connections that are silent for
so long. The price: the status is 200 from the first comment on, and a later error is sent as an
event.
"""

import asyncio

from router.http.exchange import Exchange, date_line
from router.http.sse import COMMENT, FIELDS


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
        if exchange.part is not None and exchange.part.begins and not exchange.commented:
            pass  # a new session's id goes into the header, and is not known to be there yet
        elif exchange.commented:
            exchange.write(COMMENT, last=False)
        else:
            exchange.commented = True
            fields = FIELDS + b"x-request-id: %b\r\n" % exchange.identity + date_line()
            exchange.start(200, fields, None, COMMENT, last=False)
        self._timer = self._loop.call_later(self._every, self._write)
