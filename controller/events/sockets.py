"""ZeroMQ sockets to engines, and their options."""

import asyncio
import logging
from enum import Enum
from socket import AF_INET6, SOCK_STREAM

import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from controller.events.shared_socket import binds

log = logging.getLogger("warmroute.controller")

#: Most sockets in all. Each engine takes three, two of them to monitor its connection; ZeroMQ's
#: default limit is 1,023.
MOST_SOCKETS = 1 << 14
#: Most live messages of one engine that wait in a socket, as many as vLLM keeps for a replay. What
#: comes then waits at the engine, which drops it beyond a bound of its own (`hwm`).
MOST_LIVE = 10_000
#: Most messages of a replay that wait. An engine does not wait with those beyond, it drops them.
MOST_REPLAYED = 100_000
#: Largest message in bytes: with a larger one, ZeroMQ ends the connection.
LARGEST = 32 << 20
#: Seconds between two attempts to bind an address that is in use.
TAKEN_S = 0.5
#: A broken connection that is not retried within so many seconds is dead. ZeroMQ retries by itself
#: after a tenth of a second, unless it could not parse what came over the connection.
ANEW_S = 5.0
#: TCP keepalive: seconds of silence before the first probe, seconds between probes, and unanswered
#: probes until the connection counts as broken (tcp(7)). A socket that only listens would not
#: notice otherwise: an engine whose node lost power closes nothing, and a device on the way that
#: drops idle connections tells nobody.
_IDLE_S, _EVERY_S, _TIMES = 15, 5, 3
_MADE, _LOST = zmq.EVENT_HANDSHAKE_SUCCEEDED, zmq.EVENT_DISCONNECTED
_TRIED = zmq.EVENT_CONNECT_DELAYED | zmq.EVENT_CONNECT_RETRIED | zmq.EVENT_CONNECTED


def context() -> zmq.asyncio.Context:
    """Create the context for all sockets."""
    made = zmq.asyncio.Context()
    made.set(zmq.MAX_SOCKETS, MOST_SOCKETS)
    return made


async def by_ipv6(endpoint: str) -> bool:
    """Whether an address can only be reached by IPv6.

    A name with both kinds of addresses counts as IPv4, which engines bind; so does a name that
    cannot be resolved now.
    """
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
    """Create a socket. Raises ZMQError if sockets or file descriptors run out."""
    socket = context.socket(kind)
    socket.set_hwm(MOST_LIVE if kind == zmq.SUB else MOST_REPLAYED)
    socket.setsockopt(zmq.MAXMSGSIZE, LARGEST)
    socket.setsockopt(zmq.IPV6, ipv6)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, _IDLE_S)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, _EVERY_S)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, _TIMES)
    return socket


async def attach(socket: zmq.asyncio.Socket, endpoint: str) -> None:
    """Connect, or bind as soon as the address is free. Raises ZMQError if the address is bad."""
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
    """A change in the state of a connection."""

    MADE = "made"
    LOST = "lost"
    DEAD = "dead"
    """It broke, and ZeroMQ does not retry."""


class Monitor:
    """Watches the connection of a socket, or all connections that engines make to it."""

    def __init__(self, socket: zmq.asyncio.Socket, endpoint: str) -> None:
        """Start watching. Raises ZMQError if sockets or file descriptors run out."""
        self._socket = socket
        self._dials = not binds(endpoint)
        self._events = socket.get_monitor_socket(_MADE | _LOST | _TRIED)
        self._broken = False

    async def change(self) -> Change:
        """Wait for the next change."""
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
        """Stop watching."""
        self._socket.disable_monitor()
        self._events.close(linger=0)
