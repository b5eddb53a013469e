"""Failures on demand, one at a time, asked for at a worker's `/simulator/fault`.

========  ==========================================================================
kind      what happens
========  ==========================================================================
slow      every step takes `factor` times as long
refuse    the listening socket is closed: connections are refused
reset     the answer breaks off with a TCP reset after `after_bytes` of its body
stall     the answer stops after `after_bytes` of its body, the connection stays
error     the answer is `status` with an error body
garbage   the answer is not HTTP
restart   all connections reset, all requests and the cache lost, KV events from 0
========  ==========================================================================

`after_bytes` left out stops an answer before its status line. `count` ends a fault after so many
requests, `seconds` after so long; `refuse` and `restart` come back after `seconds`. A worker that
refuses cannot be told to stop over HTTP: give it `seconds`, or call `Worker.clear_fault`. The
faults that befall single requests take only paths that begin with `path`.
"""

import asyncio
from typing import Annotated, Literal

import msgspec

Kind = Literal["slow", "refuse", "reset", "stall", "error", "garbage", "restart"]

#: Faults that befall one request at a time.
PER_REQUEST = frozenset({"reset", "stall", "error", "garbage"})


class FaultOrder(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """What an operator asks for; see the table above."""

    kind: Kind
    #: Times slower (slow).
    factor: Annotated[float, msgspec.Meta(gt=0)] = 4.0
    #: Bytes of the response body before it breaks off (reset, stall).
    after_bytes: Annotated[int, msgspec.Meta(ge=0)] | None = None
    #: HTTP status (error).
    status: Annotated[int, msgspec.Meta(ge=400, le=599)] = 500
    #: Requests it befalls; None: all.
    count: Annotated[int, msgspec.Meta(ge=1)] | None = None
    #: How long it lasts, in seconds; None: until cleared (a restart comes back at once).
    seconds: Annotated[float, msgspec.Meta(ge=0)] | None = None
    #: The paths it befalls begin so.
    path: str = "/v1/"


class Fault:
    """An order in force."""

    __slots__ = ("left", "order", "over")

    def __init__(self, order: FaultOrder) -> None:
        self.order = order
        #: Requests it will still befall; None: no bound.
        self.left = order.count
        #: Set once it is over.
        self.over = asyncio.Event()

    @property
    def kind(self) -> Kind:
        """Which of the failures it is."""
        return self.order.kind

    @property
    def after_bytes(self) -> int | None:
        """Bytes of the response body before it breaks off."""
        return self.order.after_bytes

    def befalls(self, path: str) -> bool:
        """Whether it befalls a request to this path; counts it when so."""
        if self.kind not in PER_REQUEST or self.left == 0 or not path.startswith(self.order.path):
            return False
        if self.left is not None:
            self.left -= 1
        return True
