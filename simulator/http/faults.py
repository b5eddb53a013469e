"""Failures on demand, one at a time, requested at a worker's `/simulator/fault`.

========  ==========================================================================
kind      what happens
========  ==========================================================================
slow      every step takes `factor` times as long
refuse    the listening socket is closed: connections are refused
reset     the answer breaks off with a TCP reset after `after_bytes` of its body
stall     the answer stops after `after_bytes` of its body, the connection stays open
error     the answer is `status` with an error body
garbage   the answer is not HTTP
restart   all connections reset, all requests and the cache lost, KV events from 0
========  ==========================================================================

Without `after_bytes` the answer stops before its status line. `count` ends a fault after that many
requests, `seconds` after that time; after `refuse` and `restart` the worker is back after
`seconds`. `refuse` cannot be cleared over HTTP: give it `seconds`, or call `Worker.clear_fault`.
Faults of single requests affect only paths that begin with `path`.
"""

import asyncio
from typing import Annotated, Literal

import msgspec

Kind = Literal["slow", "refuse", "reset", "stall", "error", "garbage", "restart"]

#: Faults that affect one request at a time.
PER_REQUEST = frozenset({"reset", "stall", "error", "garbage"})


class FaultOrder(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    """A request for a fault; the module docstring lists the kinds."""

    kind: Kind
    #: How many times slower (slow).
    factor: Annotated[float, msgspec.Meta(gt=0)] = 4.0
    #: Bytes of the response body before it breaks off (reset, stall).
    after_bytes: Annotated[int, msgspec.Meta(ge=0)] | None = None
    #: HTTP status (error).
    status: Annotated[int, msgspec.Meta(ge=400, le=599)] = 500
    #: How many requests it affects; None: all.
    count: Annotated[int, msgspec.Meta(ge=1)] | None = None
    #: How long it lasts, in seconds; None: until cleared (a restart comes back at once).
    seconds: Annotated[float, msgspec.Meta(ge=0)] | None = None
    #: Prefix of the paths it affects.
    path: str = "/v1/"


class ActiveFault:
    """An active fault."""

    __slots__ = ("left", "order", "over")

    def __init__(self, order: FaultOrder) -> None:
        self.order = order
        #: Requests that it will still affect; None: no limit.
        self.left = order.count
        #: Set once it is over.
        self.over = asyncio.Event()

    def befalls(self, path: str) -> bool:
        """Return true if it affects a request to this path, which it then counts."""
        order = self.order
        if order.kind not in PER_REQUEST or self.left == 0 or not path.startswith(order.path):
            return False
        if self.left is not None:
            self.left -= 1
        return True
