"""How many sent bytes the other end has not received yet, as far as that can be known."""

import asyncio
import sys
from fcntl import ioctl
from termios import TIOCOUTQ

#: What the system writes the length to.
_INT = bytes(4)


def untaken(transport: asyncio.Transport) -> int:
    """Return the bytes not yet taken by the other end, or by the system without TLS.

    A TLS transport counts only bytes that are not encrypted yet. Encrypted ones wait in a transport
    below it, which cannot be asked, but which has sent everything once the socket's queue is empty.
    If the system does not tell the length of that queue, it counts as empty.
    """
    waiting = transport.get_write_buffer_size()
    connection = transport.get_extra_info("socket")
    if not waiting and connection and transport.get_extra_info("ssl_object"):
        waiting = queued(connection.fileno())
    return waiting


def queued(descriptor: int) -> int:
    """Return the bytes in a socket's send queue: unsent or not acknowledged (tcp(7))."""
    if sys.platform != "linux" or descriptor < 0:
        return 0
    try:
        return int.from_bytes(ioctl(descriptor, TIOCOUTQ, _INT), sys.byteorder)
    except OSError:  # not a socket any more
        return 0
