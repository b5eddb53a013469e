"""uvicorn around the door."""

import errno
import socket

import uvicorn

from router.app import Door
from router.settings import Settings
from router.units import Address

#: Seconds a client's idle connection is kept.
KEEPALIVE_S = 75
#: Connections that wait to be accepted.
BACKLOG = 4096
#: Seconds that answers under way are given when the server is told to stop.
DRAIN_S = 600


class PortTaken(Exception):
    """The address to listen on cannot be had."""


def bind(address: Address) -> socket.socket:
    """Open the listening socket. Raises PortTaken with a sentence for the operator."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((address.host, address.port))
        listener.listen(BACKLOG)  # here, so that of two servers the second one hears of it
    except OSError as error:
        listener.close()
        reason = f"cannot listen on {address}: {error.strerror or error}."
        if error.errno == errno.EADDRINUSE:
            reason += " Is another server running there?"
        raise PortTaken(f"{reason} Choose another address with --listen.") from None
    return listener


def server(
    door: Door, settings: Settings, kind: type[uvicorn.Server] = uvicorn.Server
) -> uvicorn.Server:
    """Make the server; run it with `serve(sockets=[bind(...)])`."""
    config = uvicorn.Config(
        door,
        http="httptools",
        loop="uvloop",
        ws="none",
        lifespan="on",
        log_config=None,
        log_level=settings.logs.level,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEPALIVE_S,
        timeout_graceful_shutdown=DRAIN_S,
    )
    return kind(config)
