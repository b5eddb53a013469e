"""The tokenizers in use: one for equal files, however many models and pools share it.

The shelf holds only weak references, so a tokenizer that is no longer used is freed.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

from router.rendering.errors import BadFolder
from router.rendering.folder import (
    PATTERNS,
    TOKENIZER,
    ModelFolder,
    check_sizes,
    read_folder,
)
from router.rendering.mistral import Mistral, mistrals_library
from router.rendering.renderer import TemplateRenderer
from router.rendering.tokenizer import settings_of_ids
from router.rendering.tokens import PromptTokenizer, Renderer
from router.tokenizers.tokenizer import LoadedTokenizer, TokenizerLibrary
from router.tokenizers.trial import OpenedTokenizer, open_tokenizer, try_templates

#: Bytes read at a time for a hash.
_HASH_CHUNK_BYTES = 1 << 20
#: Seconds that one thread waits for another that opens the same files.
MAX_OPENING_S = 120.0


class TokenizerCache:
    """Opens folders. May be used by several threads; those that open the same files take turns."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._opening: WeakValueDictionary[str, Lock] = WeakValueDictionary()
        self._opened: WeakValueDictionary[str, TokenizerLibrary] = WeakValueDictionary()
        self._tokenizers: WeakValueDictionary[str, LoadedTokenizer] = WeakValueDictionary()

    def open(
        self,
        path: Path,
        template: Path | None = None,
        keywords: Mapping[str, Any] | None = None,
        mode: str = "auto",
    ) -> LoadedTokenizer:
        """Read a model's folder, or reuse what was read from an equal one. Raises BadFolder.

        `template` is the file of a chat template that replaces the model's own. `keywords` are
        those that engines give every template. `mode` is how engines tokenize: `hf`, `mistral`, or
        `auto`, which depends on the folder. Takes a second for a large tokenizer.
        """
        files = _hashes(path)
        text = _template(template)
        key = json.dumps([files, text, dict(keywords or {}), mode], sort_keys=True)
        with self._turn(key, path):
            tokenizer = self._tokenizers.get(key)
            if tokenizer is None:
                folder = read_folder(path)
                by_mistral = mode == "mistral" or (mode == "auto" and folder.mistral)
                opened = self._library(folder, files, by_mistral=by_mistral)
                if text is not None:
                    folder = replace(folder, templates={"default": text}, processor=None)
                sure = by_mistral or not folder.rebuilt or TOKENIZER not in files
                exact = PromptTokenizer(_renderer(folder, opened, keywords or {}))
                tokenizer = self._tokenizers[key] = LoadedTokenizer(path, exact, opened, sure)
            return tokenizer

    def _library(
        self, folder: ModelFolder, files: Mapping[str, str], *, by_mistral: bool
    ) -> TokenizerLibrary:
        config = settings_of_ids(folder.config)
        counting = [by_mistral, (not by_mistral and files.get(TOKENIZER)) or files, config]
        key = json.dumps(counting, sort_keys=True)
        with self._turn(key, folder.path):
            library = self._opened.get(key)
            if library is None:
                new = _by_mistral(folder.path) if by_mistral else _usual(folder.path)
                library = self._opened[key] = new
            return library

    @contextmanager
    def _turn(self, key: str, path: Path) -> Iterator[None]:
        """Let one thread at a time open the files with that key. Raises BadFolder.

        A thread that never finishes, because its template does not, blocks only those with the same
        key.
        """
        with self._lock:
            turn = self._opening.setdefault(key, Lock())
        if not turn.acquire(timeout=MAX_OPENING_S):
            raise BadFolder(f"{path} is still being opened, for more than {MAX_OPENING_S:g}s")
        try:
            yield
        finally:
            turn.release()


def _by_mistral(path: Path) -> TokenizerLibrary:
    return TokenizerLibrary(
        Mistral.name, "the model is in Mistral's format", mistrals_library(path)
    )


def _usual(path: Path) -> TokenizerLibrary:
    tokenizer = open_tokenizer(path)
    return TokenizerLibrary(tokenizer.tokenizer.name, tokenizer.why, tokenizer)


def _renderer(
    folder: ModelFolder, opened: TokenizerLibrary, keywords: Mapping[str, Any]
) -> Renderer:
    if not isinstance(opened.library, OpenedTokenizer):
        return Mistral(opened.library, keywords)
    if opened.library.special_tokens is not None:
        folder = replace(folder, special_tokens=dict(opened.library.special_tokens))
    try_templates(folder, keywords)
    return TemplateRenderer(folder, opened.library.tokenizer, keywords=keywords)


def _hashes(path: Path) -> dict[str, str]:
    """Return the hash of every relevant file, by name. Raises BadFolder."""
    try:
        files = {file for pattern in PATTERNS for file in path.glob(pattern) if file.is_file()}
        check_sizes(files)
        return {str(file.relative_to(path)): _hash(file) for file in files}
    except OSError as error:
        raise BadFolder(f"{path} cannot be read: {error.strerror or error}") from None


def _hash(file: Path) -> str:
    digest = sha256()
    with file.open("rb") as stream:
        while piece := stream.read(_HASH_CHUNK_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def _template(path: Path | None) -> str | None:
    try:
        return path.read_text(encoding="utf-8") if path else None
    except (OSError, UnicodeDecodeError) as error:
        raise BadFolder(f"the chat template {path} cannot be read: {error}") from None
