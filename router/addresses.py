"""Where a name leads, looked up beside the requests: once at a time, and what was found is kept.

An event loop looks names up in a few threads that all of them share, and a resolver that does not
answer holds such a thread for many seconds: one name would keep all others waiting. Here each name
has a thread of its own while it is looked up. Whoever connects waits for that only for a moment if
an earlier answer is known, as Envoy's clusters of type STRICT_DNS go on with the last good one.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Callable
from contextlib import suppress
from errno import ENOMEM
from math import inf
from threading import Thread

#: Seconds for which an answer, or a failure, is not asked for again.
FRESH_S = 1.0
#: Seconds after which it is asked for although nobody connects: connections are kept for longer.
REFRESH_S = 10.0
#: Seconds that a new answer is waited for where an earlier one is known.
PATIENCE_S = 0.25

#: These failures say that there is no such name (getaddrinfo(3)); all others may pass.
_GONE = frozenset((socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)))

#: Addresses of a name, the preferred one first. Raises OSError; may take as long as it likes.
LookUp = Callable[[str], tuple[str, ...]]


def look_up(host: str) -> tuple[str, ...]:
    """Ask the system's resolver, in the order of RFC 6724."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(address[0]) for *_, address in found))


class Addresses:
    """Those of one name; a name that is an address is its own."""

    def __init__(self, host: str, look_up: LookUp = look_up) -> None:
        self._host = host
        self._look_up = look_up
        self._is_address = _is_address(host)
        self._known: tuple[str, ...] = (host,) if self._is_address else ()
        self._failure: OSError | None = None
        self._pending: asyncio.Future[None] | None = None
        self._began = -inf

    async def current(self) -> tuple[str, ...]:
        """Return the addresses there are, as new as can be had soon; never none. Raises OSError."""
        if self._is_address:
            return self._known
        self._refresh(FRESH_S)
        if self._pending is not None:
            left = max(0.0, self._began + PATIENCE_S - asyncio.get_running_loop().time())
            # (Where nothing is known there is no hurry: whoever connects has a deadline.)
            await asyncio.wait((self._pending,), timeout=left if self._known else None)
        if not self._known:
            failure = self._failure or OSError("has no address")
            raise type(failure)(*failure.args)  # a new one: its traceback leads to us
        return self._known

    def leads_to(self, address: str) -> bool:
        """Whether the name leads there, as far as is known."""
        return address in self._known or not self._known

    def look(self) -> None:
        """Look it up again if that is long ago; to be called now and then."""
        if not self._is_address:
            self._refresh(REFRESH_S)

    def _refresh(self, age: float) -> None:
        loop = asyncio.get_running_loop()
        if self._pending is not None or loop.time() - self._began < age:
            return
        self._began, self._pending = loop.time(), loop.create_future()
        try:  # a daemon: nobody waits for it at the end
            Thread(target=self._ask, args=(loop,), name="look-up", daemon=True).start()
        except RuntimeError:
            self._take((), OSError(ENOMEM, "no thread can be started"))

    def _ask(self, loop: asyncio.AbstractEventLoop) -> None:
        found: tuple[str, ...] = ()
        failure: OSError | None = None
        try:
            found = self._look_up(self._host)
        except OSError as error:
            failure = error
        except UnicodeError:  # a label that is empty or too long
            failure = socket.gaierror(socket.EAI_NONAME, "this cannot be a name")
        with suppress(RuntimeError):  # the loop is closed: nobody wants to know any more
            loop.call_soon_threadsafe(self._take, found, failure)

    def _take(self, found: tuple[str, ...], failure: OSError | None) -> None:
        pending, self._pending = self._pending, None
        self._failure = failure
        if failure is None or failure.errno in _GONE:
            self._known = found
        if pending is not None and not pending.done():
            pending.set_result(None)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
