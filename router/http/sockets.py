"""What the system does and knows of a connection: keep-alive, resets, bytes not yet received.

TCP keep-alive lets it notice that the other end of a quiet connection is gone: a node that loses
power or network does not close its connections. Without this, requests to it would wait for as
long as the slowest prompt may take.
"""

import asyncio
import socket
import struct
import sys
from fcntl import ioctl
from termios import TIOCOUTQ

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


def enable_keepalive(connection: socket.socket | None) -> None:
    """Turn on keep-alive for a TCP connection; None does nothing."""
    if connection is None:
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _OPTIONS:
        connection.setsockopt(socket.IPPROTO_TCP, name, value)


def reset(connection: socket.socket | None) -> None:
    """Make a later close reset the connection.

    Otherwise the other end would take the close for a complete answer (RFC 9112 section 9.6).
    """
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


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
        return int.from_bytes(ioctl(descriptor, TIOCOUTQ, bytes(4)), sys.byteorder)
    except OSError:  # not a socket any more
        return 0
