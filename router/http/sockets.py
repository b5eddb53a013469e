"""TCP keep-alive: lets the system notice that the other end of a quiet connection is gone.

A node that loses power or network does not close its connections. Without this, requests to it
would wait for as long as the slowest prompt may take.

How many sent bytes the other end has not received yet, as far as that can be known.
"""

import asyncio
import socket
import struct
import sys
from fcntl import ioctl
from termios import TIOCOUTQ
from typing import Protocol

#: Seconds of silence until the first probe, seconds between probes, and unanswered probes allowed.
KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES = 15, 5, 3

#: Linux (tcp(7)) has all of these, other systems some. The last one, in milliseconds, gives data
#: that is never acknowledged the same time, instead of a quarter of an hour.
_OPTIONS = tuple(
    (getattr(socket, name), value)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
        ("TCP_KEEPCNT", KEEPALIVE_PROBES),
        ("TCP_USER_TIMEOUT", 1000 * (KEEPALIVE_IDLE_S + KEEPALIVE_INTERVAL_S * KEEPALIVE_PROBES)),
    )
    if hasattr(socket, name)
)


#: How Linux tells that the other end has closed its side (RFC 9293 section 3.3.2).
_CLOSE_WAIT = 8


class SocketOptions(Protocol):
    """A socket, or what an event loop exposes of one."""

    def getsockopt(self, level: int, name: int, length: int, /) -> bytes:
        """As that of a socket."""

    def setsockopt(self, level: int, name: int, value: int | bytes, /) -> None:
        """Set an option, as `socket.setsockopt` does."""


def enable_keepalive(connection: SocketOptions | None) -> None:
    """Turn on keep-alive for a TCP connection; None does nothing."""
    if connection is None:
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _OPTIONS:
        connection.setsockopt(socket.IPPROTO_TCP, name, value)


def has_ended(connection: SocketOptions | None) -> bool:
    """Whether the other end has closed its side; False where the system does not tell."""
    if connection is None or sys.platform != "linux":
        return False
    try:
        return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _CLOSE_WAIT
    except OSError:  # not a socket any more
        return False


def reset(connection: SocketOptions | None) -> None:
    """Make a later close reset the connection.

    Otherwise the other end would take the close for a complete answer (RFC 9112 section 9.6).
    """
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


#: What the system writes the length to.
_INT = bytes(4)


def unacked_bytes(transport: asyncio.Transport) -> int:
    """Return the bytes not yet taken by the other end, or by the system without TLS.

    A TLS transport counts only bytes that are not encrypted yet. Encrypted ones wait in a transport
    below it, which cannot be asked, but which has sent everything once the socket's queue is empty.
    If the system does not tell the length of that queue, it counts as empty.
    """
    waiting = transport.get_write_buffer_size()
    connection = transport.get_extra_info("socket")
    if not waiting and connection and transport.get_extra_info("ssl_object"):
        waiting = send_queue_bytes(connection.fileno())
    return waiting


def send_queue_bytes(descriptor: int) -> int:
    """Return the bytes in a socket's send queue: unsent or not acknowledged (tcp(7))."""
    if sys.platform != "linux" or descriptor < 0:
        return 0
    try:
        return int.from_bytes(ioctl(descriptor, TIOCOUTQ, _INT), sys.byteorder)
    except OSError:  # not a socket any more
        return 0
