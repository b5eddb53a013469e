"""What a client may take: time, bytes and connections."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits for each client, in seconds and bytes."""

    header_s: float = 10.0
    body_s: float = 30.0
    write_s: float = 60.0
    keepalive_s: float = 75.0
    url: int = 8 << 10
    headers: int = 32 << 10
    header_count: int = 100
    connections: int = 10_000
