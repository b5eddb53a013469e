"""ZeroMQ sockets to engines, and their options."""

import asyncio
import logging
from enum import Enum
from socket import AF_INET6, SOCK_STREAM
from typing import NamedTuple

import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from controller.events.source import binds

log = logging.getLogger("warmroute.controller")

#: Most sockets in all. Each engine takes three, two of them to monitor its connection; ZeroMQ's
#: default limit is 1,023.
MAX_SOCKETS = 1 << 14
#: Most live messages of one engine that wait in a socket, as many as vLLM keeps for a replay. What
#: comes then waits at the engine, which drops it beyond a bound of its own (`hwm`).
MAX_LIVE_MESSAGES = 10_000
#: Most messages of a replay that wait. An engine does not wait with those beyond, it drops them.
MAX_REPLAYED_MESSAGES = 100_000
#: Largest message in bytes: with a larger one, ZeroMQ ends the connection.
MAX_MESSAGE_BYTES = 32 << 20
#: TCP keepalive: seconds of silence before the first probe, seconds between probes, and unanswered
#: probes until the connection counts as broken (tcp(7)). A socket that only listens would not
#: notice otherwise: an engine whose node lost power closes nothing, and a device on the way that
#: drops idle connections tells nobody.
_KEEPALIVE_IDLE_S, _KEEPALIVE_INTERVAL_S, _KEEPALIVE_PROBES = 15, 5, 3
_CONNECTED, _DISCONNECTED = zmq.EVENT_HANDSHAKE_SUCCEEDED, zmq.EVENT_DISCONNECTED
_CONNECTING = zmq.EVENT_CONNECT_DELAYED | zmq.EVENT_CONNECT_RETRIED | zmq.EVENT_CONNECTED


class Intervals(NamedTuple):
    """How often things are tried, and how long they may take, in seconds."""

    tick: float = 0.5
    """Between two calls of `EventSource.tick`."""
    retry: float = 1.0
    """Until a socket is created again, after none could be created or its connection died."""
    bind_retry: float = 0.5
    """Between two attempts to bind an address that is in use."""
    reconnect: float = 5.0
    """A broken connection that is not retried within this time is dead. ZeroMQ retries by itself
    after a tenth of a second, unless it could not parse what came over the connection."""
    time_slice: float = 0.002
    """How long events are applied before other tasks run; one message may exceed it."""


DEFAULT_INTERVALS = Intervals()


def create_context() -> zmq.asyncio.Context:
    """Create the context for all sockets."""
    context = zmq.asyncio.Context()
    context.set(zmq.MAX_SOCKETS, MAX_SOCKETS)
    return context


async def needs_ipv6(endpoint: str) -> bool:
    """Return true if an address can only be reached by IPv6.

    A name with both kinds of addresses counts as IPv4, which engines bind; so does a name that
    cannot be resolved now.
    """
    host = endpoint.removeprefix("tcp://").rpartition(":")[0]
    if "[" in endpoint or not host or binds(endpoint) or not endpoint.startswith("tcp://"):
        return "[" in endpoint
    loop = asyncio.get_running_loop()
    try:
        addresses = await loop.getaddrinfo(host, None, type=SOCK_STREAM)
    except OSError:
        return False
    return all(family == AF_INET6 for family, *_ in addresses)


def open_socket(context: zmq.asyncio.Context, kind: int, *, ipv6: bool) -> zmq.asyncio.Socket:
    """Create a socket. Raises ZMQError if sockets or file descriptors run out."""
    socket = context.socket(kind)
    socket.set_hwm(MAX_LIVE_MESSAGES if kind == zmq.SUB else MAX_REPLAYED_MESSAGES)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
    socket.setsockopt(zmq.IPV6, ipv6)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, _KEEPALIVE_IDLE_S)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, _KEEPALIVE_INTERVAL_S)
    socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, _KEEPALIVE_PROBES)
    return socket


async def attach(socket: zmq.asyncio.Socket, endpoint: str, retry_s: float) -> None:
    """Connect, or bind as soon as the address is free. Raises ZMQError if the address is bad."""
    logged = False
    while True:
        try:
            socket.bind(endpoint) if binds(endpoint) else socket.connect(endpoint)
        except zmq.ZMQError as error:
            if error.errno != zmq.EADDRINUSE:
                raise
            if not logged:
                log.error("KV events at %s: %s", endpoint, error)
            logged = True
            await asyncio.sleep(retry_s)
        else:
            return


class ConnectionChange(Enum):
    """A change in the state of a connection."""

    MADE = "made"
    LOST = "lost"
    DEAD = "dead"
    """It broke, and ZeroMQ does not retry."""


class Monitor:
    """Watches the connection of a socket, or all connections that engines make to it."""

    def __init__(self, socket: zmq.asyncio.Socket, endpoint: str, reconnect_s: float) -> None:
        """Start watching. Raises ZMQError if sockets or file descriptors run out."""
        self._socket = socket
        self._dials = not binds(endpoint)
        self._events = socket.get_monitor_socket(_CONNECTED | _DISCONNECTED | _CONNECTING)
        self._broken = False
        self._reconnect_s = reconnect_s

    async def change(self) -> ConnectionChange:
        """Wait for the next change."""
        while True:
            try:
                async with asyncio.timeout(self._reconnect_s if self._broken else None):
                    event = (await recv_monitor_message(self._events))["event"]
            except TimeoutError:
                return ConnectionChange.DEAD
            self._broken = bool(event & _DISCONNECTED) and self._dials
            if event & _DISCONNECTED:
                return ConnectionChange.LOST
            if event & _CONNECTED:
                return ConnectionChange.MADE

    def close(self) -> None:
        """Stop watching."""
        self._socket.disable_monitor()
        self._events.close(linger=0)
