"""What a client may take: time, bytes and connections."""

from dataclasses import dataclass
from typing import Self

from router.settings.server import ClientSettings, LimitSettings


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits for each client, in seconds and bytes."""

    header_s: float
    body_s: float
    write_s: float
    keepalive_s: float
    url: int
    headers: int
    header_count: int
    connections: int

    @classmethod
    def of(cls, clients: ClientSettings, limits: LimitSettings) -> Self:
        """Return what the settings say; read once, as every request reads them."""
        return cls(
            header_s=clients.header,
            body_s=clients.body,
            write_s=clients.write,
            keepalive_s=clients.keepalive,
            connections=clients.connections,
            url=limits.url,
            headers=limits.headers,
            header_count=limits.header_count,
        )
