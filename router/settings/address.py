"""The type for addresses in settings: host and port of a socket."""

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Self

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from router.runtime.quoting import shown


@dataclass(frozen=True, slots=True)
class Address:
    """Host and port of a socket; an IPv6 host is written in brackets and kept without them."""

    host: str
    port: int

    @classmethod
    def parse(cls, value: object) -> Self:
        """Read `host:port` or `[::1]:port`. Raises ValueError with a sentence."""
        if isinstance(value, cls):
            return value
        found = re.fullmatch(r"(\[.+\]|[^\[\]:]+):([0-9]{1,5})", str(value))
        if not isinstance(value, str) or not found or not _is_host(found[1]):
            raise ValueError(
                f"{shown(value)} is not an address: write host:port,"
                ' such as 127.0.0.1:8080 or "[::1]:8080"'
            )
        if int(found[2]) > 65535:
            raise ValueError(f"{shown(value)} is not an address: a port is at most 65535")
        return cls(found[1].strip("[]"), int(found[2]))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it; a name other than localhost may be anywhere."""
        if self.host.lower() == "localhost":
            return True
        try:
            address = ip_address(self.host)
        except ValueError:
            return False
        mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        return (mapped or address).is_loopback

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @classmethod
    def __get_pydantic_core_schema__(cls, _: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls.parse, serialization=core_schema.to_string_ser_schema(when_used="json")
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, _: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"type": "string", "pattern": r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}$"}


def _is_host(text: str) -> bool:
    try:
        if text.startswith("["):
            return "%" not in text and bool(IPv6Address(text[1:-1]).packed)
        if re.fullmatch(r"[0-9.]+", text):
            return bool(IPv4Address(text).packed)
    except ValueError:
        return False
    return re.fullmatch(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?", text) is not None
