"""What was read of a model's folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from router.identity.exact import Exact

if TYPE_CHECKING:  # they bring the libraries along
    from router.identity.mistral import MistralsLibrary
    from router.identity.trial import Opened


@dataclass(frozen=True, eq=False)
class OpenedLibrary:
    """What tokenizes, as it was opened."""

    name: str
    """The library's."""
    why: str
    library: "Opened | MistralsLibrary"


@dataclass(frozen=True, eq=False)
class Volume:
    """What a folder, a template and keywords make: equal ones are the same object."""

    path: Path
    """A folder that it was read from."""
    exact: Exact
    opened: OpenedLibrary
    sure: bool = True
    """What is read here is what engines read; else a worker has to confirm it."""

    @property
    def library(self) -> str:
        """What tokenizes."""
        return self.opened.name

    @property
    def why(self) -> str:
        """Why it is that library."""
        return self.opened.why
