"""A tokenizer that was loaded from a model's folder.

Apart from `loader.py`, as a router without tokenizers loads none of the libraries for them.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from router.rendering.tokens import PromptTokenizer

if TYPE_CHECKING:
    from router.rendering.mistral import MistralsLibrary
    from router.tokenizers.trial import OpenedTokenizer


@dataclass(frozen=True, eq=False)
class TokenizerLibrary:
    """An opened tokenizer library."""

    name: str
    """The library's name."""
    why: str
    library: "OpenedTokenizer | MistralsLibrary"


@dataclass(frozen=True, eq=False)
class LoadedTokenizer:
    """The result of a folder, a template and keywords; equal ones are the same object."""

    path: Path
    """A folder that it was read from."""
    exact: PromptTokenizer
    opened: TokenizerLibrary
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
