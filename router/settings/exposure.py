"""Finds addresses open by accident: reachable from other machines, but without access rules.

Works on the raw values, like all checks for contradictions.
"""

from collections.abc import Iterator, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, NamedTuple

from router.settings.address import Address
from router.settings.errors import KeyPath

LISTEN: Final = Address("127.0.0.1", 8080)
"""Where clients connect to if the settings do not say."""


class Exposure(NamedTuple):
    """One address that must not be served with these settings."""

    path: KeyPath
    message: str


def exposures(given: Mapping[str, object]) -> Iterator[Exposure]:
    """Find addresses that others can reach without keys, and one address given twice."""
    listen, admin = _address(given.get("listen")), _address(_get(given, "listen"))
    said = given.get("auth") is not None  # its content is checked elsewhere
    if listen and not listen.is_loopback and not said:
        yield Exposure(
            ("listen",),
            f"{listen} can be reached from other machines, and nothing says who may come in:"
            " give auth: {keys: [...]}, or write auth: none to let everyone in",
        )
    if admin and not admin.is_loopback and not said and not _get(given, "keys"):
        yield Exposure(
            ("admin", "listen"),
            f"{admin} can be reached from other machines, and nothing says who may come in:"
            " give admin: {keys: [...]} or auth: {keys: [...]},"
            " or write auth: none to let everyone in",
        )
    door = LISTEN if given.get("listen") is None else listen
    if admin and door and _meet(admin, door):
        which = "" if door == admin else f" ({door})"
        which = which if listen else " by default"
        yield Exposure(
            ("admin", "listen"),
            f"{admin} is already the address of listen{which}:"
            " give another port, or leave it out to serve both there",
        )


def _meet(one: Address, other: Address) -> bool:
    """Whether only one of them can be listened on; port 0 is a different one each time."""
    if not one.port or one.port != other.port:
        return False
    hosts = {_host(one), _host(other)}
    if len(hosts) == 1 or IPv6Address(0) in hosts:  # Linux takes that for IPv4 as well
        return True
    return IPv4Address(0) in hosts and not any(isinstance(host, IPv6Address) for host in hosts)


def _host(address: Address) -> IPv4Address | IPv6Address | str:
    """Return what a socket is bound to; names lead to IPv4, and only `localhost` is resolved."""
    name = address.host.lower()
    try:
        found = ip_address("127.0.0.1" if name == "localhost" else name)
    except ValueError:
        return name
    return getattr(found, "ipv4_mapped", None) or found


def _get(given: Mapping[str, object], key: str) -> object:
    admin = given.get("admin")
    return admin.get(key) if isinstance(admin, Mapping) else getattr(admin, key, None)


def _address(value: object) -> Address | None:
    try:
        return Address.parse(value)
    except ValueError:
        return None
