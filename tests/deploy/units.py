"""The units for systemd under `deploy/`, parsed."""

from pathlib import Path
from typing import NamedTuple

from tests.deploy.files import DEPLOY

#: Folders that systemd makes for a unit, and where.
MADE = {"StateDirectory": "/var/lib", "CacheDirectory": "/var/cache"}


class Unit(NamedTuple):
    """One unit: the values of each key, in the order in which they are given."""

    service: dict[str, list[str]]
    others: dict[str, list[str]]

    def one(self, key: str) -> str:
        """Return the value of a key of `[Service]` that is given once."""
        (value,) = self.service[key]
        return value

    def words(self) -> list[str]:
        """Return the words of the command, the program first."""
        return self.one("ExecStart").split()

    def writable(self) -> set[Path]:
        """Return the folders that it may write to."""
        return {Path(root) / self.one(key) for key, root in MADE.items() if key in self.service}


def unit(name: str) -> Unit:
    """Return a unit by its name. Raises ValueError where a line is neither key nor comment."""
    found: dict[str, dict[str, list[str]]] = {}
    section = ""
    for line in (DEPLOY / "systemd" / f"{name}.service").read_text("utf-8").splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            key, equals, value = line.partition("=")
            if not equals or line.endswith("\\"):
                raise ValueError(line)
            found.setdefault(section, {}).setdefault(key, []).append(value)
    service = found.pop("Service")
    return Unit(service, {key: value for keys in found.values() for key, value in keys.items()})
