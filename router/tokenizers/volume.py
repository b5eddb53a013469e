"""What was read from a model's folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from router.rendering.tokens import Exact

if TYPE_CHECKING:  # they bring the libraries along
    from router.rendering.mistral import MistralsLibrary
    from router.rendering.trial import Opened


@dataclass(frozen=True, eq=False)
class OpenedLibrary:
    """An opened tokenizer library."""

    name: str
    """The library's name."""
    why: str
    library: "Opened | MistralsLibrary"


@dataclass(frozen=True, eq=False)
class Volume:
    """The result of a folder, a template and keywords; equal ones are the same object."""

    path: Path
    """A folder that it was read from."""
    exact: Exact
    opened: OpenedLibrary
    sure: bool = True
    """Whether engines read the same; otherwise a worker has to confirm it."""

    @property
    def library(self) -> str:
        """The name of the library that tokenizes."""
        return self.opened.name

    @property
    def why(self) -> str:
        """Why that library was chosen."""
        return self.opened.why
