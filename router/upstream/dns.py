"""Name resolution off the request path: one lookup per name at a time, and the result is kept.

An event loop resolves all names in a few shared threads, and a resolver that does not answer blocks
such a thread for many seconds: one name would keep all others waiting. Here each name has a thread
of its own during a lookup. If an earlier answer is known, a new connection waits only briefly for
the lookup and then uses that answer, as Envoy's clusters of type STRICT_DNS do.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Callable
from contextlib import suppress
from errno import ENOMEM
from math import inf
from threading import Thread

#: Seconds for which an answer, or a failure, counts as fresh and is not looked up again.
FRESH_S = 1.0
#: Seconds between lookups while no connection is made: kept connections live longer than that.
REFRESH_INTERVAL_S = 10.0
#: Seconds to wait for a new answer if an earlier one is known.
REFRESH_TIMEOUT_S = 0.25

#: Errors that say that there is no such name (getaddrinfo(3)); all others may be temporary.
_GONE = frozenset((socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)))

#: Returns the addresses of a name, the preferred one first. Raises OSError; may block.
LookUp = Callable[[str], tuple[str, ...]]


def look_up(host: str) -> tuple[str, ...]:
    """Ask the system's resolver; the addresses are in the order of RFC 6724."""
    results = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(address[0]) for *_, address in results))


class Addresses:
    """The IP addresses of one host name; an IP address is its own."""

    def __init__(
        self,
        host: str,
        look_up: LookUp = look_up,
        *,
        fresh_s: float = FRESH_S,
        refresh_interval_s: float = REFRESH_INTERVAL_S,
    ) -> None:
        self._host = host
        self._look_up = look_up
        self._fresh_s, self._refresh_interval_s = fresh_s, refresh_interval_s
        self._is_address = _is_address(host)
        self._known: tuple[str, ...] = (host,) if self._is_address else ()
        self._failure: OSError | None = None
        self._pending: asyncio.Future[None] | None = None
        self._began = -inf

    async def current(self) -> tuple[str, ...]:
        """Return the newest addresses that are known soon; at least one. Raises OSError."""
        if self._is_address:
            return self._known
        self._refresh(self._fresh_s)
        if self._pending is not None:
            left = max(0.0, self._began + REFRESH_TIMEOUT_S - asyncio.get_running_loop().time())
            # Without an earlier answer, wait without a limit: the caller has a deadline.
            await asyncio.wait((self._pending,), timeout=left if self._known else None)
        if not self._known:
            failure = self._failure or OSError("has no address")
            raise type(failure)(*failure.args)  # a new instance, without the kept one's traceback
        return self._known

    def leads_to(self, address: str) -> bool:
        """Whether the address is one of the name's, as far as is known."""
        return address in self._known or not self._known

    def look(self) -> None:
        """Look the name up again if the last time is long ago; to be called now and then."""
        if not self._is_address:
            self._refresh(self._refresh_interval_s)

    def _refresh(self, age: float) -> None:
        loop = asyncio.get_running_loop()
        if self._pending is not None or loop.time() - self._began < age:
            return
        self._began, self._pending = loop.time(), loop.create_future()
        try:  # a daemon thread, so that it does not delay the process's exit
            Thread(target=self._ask, args=(loop,), name="look-up", daemon=True).start()
        except RuntimeError:
            self._take((), OSError(ENOMEM, "no thread can be started"))

    def _ask(self, loop: asyncio.AbstractEventLoop) -> None:
        addresses: tuple[str, ...] = ()
        failure: OSError | None = None
        try:
            addresses = self._look_up(self._host)
        except OSError as error:
            failure = error
        except UnicodeError:  # a label that is empty or too long
            failure = socket.gaierror(socket.EAI_NONAME, "this cannot be a name")
        with suppress(RuntimeError):  # the loop is closed: the result is not needed any more
            loop.call_soon_threadsafe(self._take, addresses, failure)

    def _take(self, addresses: tuple[str, ...], failure: OSError | None) -> None:
        pending, self._pending = self._pending, None
        self._failure = failure
        if failure is None or failure.errno in _GONE:
            self._known = addresses
        if pending is not None and not pending.done():
            pending.set_result(None)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
