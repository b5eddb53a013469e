"""How much of what was sent the other end has not taken, as far as it can be told."""

import asyncio
import struct
import sys
from fcntl import ioctl
from termios import TIOCOUTQ


def untaken(transport: asyncio.Transport) -> int:
    """Return bytes; 0 only when the other end has all of them, or the system does not say.

    With TLS the transport knows of what is not encrypted yet. What is lies in another one below it,
    which cannot be asked, but waits for nothing once the system's own queue is empty.
    """
    waiting = transport.get_write_buffer_size()
    connection = transport.get_extra_info("socket")
    if not waiting and connection and transport.get_extra_info("ssl_object"):
        waiting = _queued(connection.fileno())
    return waiting


def _queued(descriptor: int) -> int:
    """Bytes that the system has sent and not heard to have arrived, or not sent yet (tcp(7))."""
    if sys.platform != "linux" or descriptor < 0:
        return 0
    try:
        answer = ioctl(descriptor, TIOCOUTQ, bytes(4))
    except OSError:  # not a socket any more
        return 0
    queued: int = struct.unpack("i", answer)[0]
    return queued
