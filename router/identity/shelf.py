"""Tokenizers in use: one for equal files, however many models and pools share it.

Nothing here keeps them: what nobody uses any more is gone.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

from router.identity.added import that_count
from router.identity.exact import Exact
from router.identity.folder import PATTERNS, TOKENIZER, BadFolder, read_folder
from router.identity.templated import Templated
from router.identity.tokenizer import Tokenizer
from router.identity.trial import opened

#: Bytes read at once for a hash.
_CHUNK = 1 << 20


@dataclass(frozen=True, eq=False)
class _Opened:
    tokenizer: Tokenizer
    why: str


@dataclass(frozen=True, eq=False)
class Volume:
    """What a folder, a template and keywords make: equal ones are the same object."""

    path: Path
    """A folder that it was read from."""
    exact: Exact
    opened: _Opened

    @property
    def library(self) -> str:
        """What tokenizes."""
        return self.opened.tokenizer.name

    @property
    def why(self) -> str:
        """Why it is that library."""
        return self.opened.why


class Shelf:
    """Opens folders. May be used by several threads; they wait for each other."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._opened: WeakValueDictionary[str, _Opened] = WeakValueDictionary()
        self._volumes: WeakValueDictionary[str, Volume] = WeakValueDictionary()

    def open(
        self, path: Path, template: Path | None = None, keywords: Mapping[str, Any] | None = None
    ) -> Volume:
        """Read a model's folder, or take what was read of an equal one. Raises BadFolder.

        `template` is the file of a chat template in place of the model's own, `keywords` are those
        that engines give every template. Takes a second for a large tokenizer.
        """
        with self._lock:
            files = _hashes(path)
            text = _template(template)
            key = json.dumps([files, text, dict(keywords or {})], sort_keys=True)
            found = self._volumes.get(key)
            if found is None:
                opened = self._tokenizer(path, files)
                folder = read_folder(path)
                if text is not None:
                    folder = replace(folder, templates={"default": text}, processor=None)
                exact = Exact(Templated(folder, opened.tokenizer, keywords=keywords))
                found = self._volumes[key] = Volume(path, exact, opened)
            return found

    def _tokenizer(self, path: Path, files: Mapping[str, str]) -> _Opened:
        config = that_count(read_folder(path).config)
        key = json.dumps([files.get(TOKENIZER) or files, config], sort_keys=True)
        found = self._opened.get(key)
        if found is None:
            found = self._opened[key] = _Opened(*opened(path))
        return found


def _hashes(path: Path) -> dict[str, str]:
    """The hash of every file that counts, by name. Raises BadFolder."""
    try:
        files = {file for pattern in PATTERNS for file in path.glob(pattern) if file.is_file()}
        return {str(file.relative_to(path)): _hash(file) for file in files}
    except OSError as error:
        raise BadFolder(f"{path} cannot be read: {error.strerror or error}") from None


def _hash(file: Path) -> str:
    found = sha256()
    with file.open("rb") as read:
        while piece := read.read(_CHUNK):
            found.update(piece)
    return found.hexdigest()


def _template(path: Path | None) -> str | None:
    try:
        return path.read_text(encoding="utf-8") if path else None
    except (OSError, UnicodeDecodeError) as error:
        raise BadFolder(f"the chat template {path} cannot be read: {error}") from None
