"""Sockets to engines, and what is asked of ZeroMQ for each."""

import asyncio
import logging
from enum import Enum
from socket import AF_INET6, SOCK_STREAM

import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from controller.line import binds

log = logging.getLogger("warmroute.controller")

#: Sockets in all. Each engine that is listened to takes three, two of them to see its connection;
#: ZeroMQ's own bound is 1,023.
MOST_SOCKETS = 1 << 14
#: Messages that may wait in a socket.
HIGH_WATER = 100_000
#: Bytes of one message that a socket takes in: with a longer one ZeroMQ ends the connection.
LARGEST = 32 << 20
#: Seconds between two tries to bind an address that is taken.
TAKEN_S = 0.5
#: Seconds in which a connection that broke must have been tried anew. ZeroMQ does that by itself, a
#: tenth of a second later, but where what came over it was not to be understood.
ANEW_S = 5.0
#: Seconds of silence until the system asks whether anybody is there, between two questions, and how
#: many go unanswered (tcp(7)). Who only listens would never find out: an engine whose node lost its
#: power says no farewell, and what drops idle connections in between says nothing either.
_IDLE_S, _EVERY_S, _TIMES = 15, 5, 3
_MADE, _LOST = zmq.EVENT_HANDSHAKE_SUCCEEDED, zmq.EVENT_DISCONNECTED
_TRIED = zmq.EVENT_CONNECT_DELAYED | zmq.EVENT_CONNECT_RETRIED | zmq.EVENT_CONNECTED


def context() -> zmq.asyncio.Context:
    """One for all sockets."""
    made = zmq.asyncio.Context()
    made.set(zmq.MAX_SOCKETS, MOST_SOCKETS)
    return made


async def by_ipv6(endpoint: str) -> bool:
    """Whether an address leads nowhere but to IPv6. A name that has both is taken for IPv4, which
    is what engines bind; one that cannot be looked up now, too."""
    host = endpoint.removeprefix("tcp://").rpartition(":")[0]
    if "[" in endpoint or not host or binds(endpoint) or not endpoint.startswith("tcp://"):
        return "[" in endpoint
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, None, type=SOCK_STREAM)
    except OSError:
        return False
    return all(family == AF_INET6 for family, *_ in found)


def opened(context: zmq.asyncio.Context, kind: int, *, ipv6: bool) -> zmq.asyncio.Socket:
    """Make a socket. Raises ZMQError for want of sockets or descriptors."""
    socket = context.socket(kind)
    socket.set_hwm(HIGH_WATER)
    socket.setsockopt(zmq.MAXMSGSIZE, LARGEST)
    socket.setsockopt(zmq.IPV6, ipv6)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, _IDLE_S)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, _EVERY_S)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, _TIMES)
    return socket


async def attach(socket: zmq.asyncio.Socket, endpoint: str) -> None:
    """Connect, or bind as soon as nobody else does. Raises ZMQError where the address is none."""
    told = False
    while True:
        try:
            socket.bind(endpoint) if binds(endpoint) else socket.connect(endpoint)
        except zmq.ZMQError as error:
            if error.errno != zmq.EADDRINUSE:
                raise
            if not told:
                log.error("KV events at %s: %s", endpoint, error)
            told = True
            await asyncio.sleep(TAKEN_S)
        else:
            return


class Change(Enum):
    """What has become of a connection."""

    MADE = "made"
    LOST = "lost"
    DEAD = "dead"
    """It broke, and nobody tries anew."""


class Monitor:
    """Sees whether the connection of a socket stands, or those of all who dial in."""

    def __init__(self, socket: zmq.asyncio.Socket, endpoint: str) -> None:
        """Raises ZMQError for want of sockets or descriptors."""
        self._socket = socket
        self._dials = not binds(endpoint)
        self._events = socket.get_monitor_socket(_MADE | _LOST | _TRIED)
        self._broken = False

    async def change(self) -> Change:
        """Wait for the next one."""
        while True:
            try:
                async with asyncio.timeout(ANEW_S if self._broken else None):
                    event = (await recv_monitor_message(self._events))["event"]
            except TimeoutError:
                return Change.DEAD
            self._broken = bool(event & _LOST) and self._dials
            if event & _LOST:
                return Change.LOST
            if event & _MADE:
                return Change.MADE

    def close(self) -> None:
        """Look no more."""
        self._socket.disable_monitor()
        self._events.close(linger=0)
