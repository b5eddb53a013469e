"""Finds addresses open by accident: reachable from other machines, but without access rules.

Works on the raw values, like all checks for contradictions.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from router.settings_errors import KeyPath
from router.units import Address


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
    if admin and listen and admin.port and str(admin).lower() == str(listen).lower():
        yield Exposure(
            ("admin", "listen"),
            f"{admin} is already the address of listen: leave it out to serve both there",
        )


def _get(given: Mapping[str, object], key: str) -> object:
    admin = given.get("admin")
    return admin.get(key) if isinstance(admin, Mapping) else getattr(admin, key, None)


def _address(value: object) -> Address | None:
    try:
        return Address.parse(value)
    except ValueError:
        return None
