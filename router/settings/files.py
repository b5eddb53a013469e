"""The files that settings name: checked when these are read, and watched while they are in use.

No error message shows what is in them. Watching is polling: a file is identified by device, inode,
size, modification time, owner and permissions, following links. So an editor's rename, the swapped
link of a Kubernetes ConfigMap, and the permission to read are seen like any other write. A change
counts once two polls in a row see the same; until then somebody may still be writing.
"""

import os
import re
import ssl
from collections.abc import Iterable, Mapping
from pathlib import Path
from stat import S_ISREG
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer, ValidationInfo, WithJsonSchema

from router.runtime.quote import shown, shown_file

Mark = tuple[int, ...] | None
"""The state of a file; None if there is none."""


def _readable(value: object, info: ValidationInfo) -> Path:
    """Return the path of a readable file; relative paths start at the settings file's folder.

    It is added to the context's `files`, readable or not, with its state before it is read.
    """
    context = info.context or {}
    path = _path(value, context.get("folder", ""))
    context.get("files", {}).setdefault(path, mark(path))
    return readable(path)


def readable(value: str | Path) -> Path:
    """Return the path of a readable file. Raises ValueError with a sentence."""
    path = _path(value, "")
    try:
        if not path.is_file():  # a pipe would block, and a device may never end
            raise ValueError(f"{shown_file(path)} does not exist or is not a plain file")
        with path.open("rb"):
            return path
    except OSError as error:
        raise ValueError(f"{shown_file(path)} cannot be read: {error.strerror}") from None


def _writable(value: object, info: ValidationInfo) -> str:
    """Return the path of a folder that files can be written in; if relative, as of a file."""
    path = _path(value, (info.context or {}).get("folder", ""))
    name = f"folder {shown(str(path), 400)}"
    try:
        if not path.is_dir():
            raise ValueError(f"{name} does not exist")
        if not os.access(path, os.W_OK | os.X_OK):
            raise ValueError(f"{name} cannot be written in")
    except OSError as error:
        raise ValueError(f"{name} cannot be used: {error.strerror}") from None
    return str(path)


def _path(value: object, folder: str | Path) -> Path:
    """Return the path that is said; it may be relative to a folder. Raises ValueError."""
    if not isinstance(value, str | Path) or not re.fullmatch(r"[^\0]+", str(value)):
        raise ValueError(f"{shown(value)} is not a path: write where the file is")
    if "-----BEGIN" in str(value):  # not echoed: it may be a key
        raise ValueError("must be the path of a file, not what the file holds")
    return Path(folder) / value


ReadableFile = Annotated[
    Path,
    BeforeValidator(_readable),
    PlainSerializer(str, when_used="json"),
    WithJsonSchema({"type": "string", "minLength": 1}),
]
"""A path, relative to the folder of the settings file, or else to the working directory."""
WritableFolder = Annotated[
    str, BeforeValidator(_writable), WithJsonSchema({"type": "string", "minLength": 1})
]
"""The path of a folder, in the same way."""


def load_chain(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Load a certificate and its key into a context. Raises ValueError with a sentence."""
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ValueError("the key does not belong to the certificate") from None
        raise ValueError("certificate and key cannot be read as such: both must be PEM") from None
    except OSError as error:
        raise ValueError(f"certificate and key cannot be read: {error.strerror}") from None


def load_roots(context: ssl.SSLContext, path: Path) -> None:
    """Make a context trust the certificates in a file. Raises ValueError with a sentence."""
    try:
        context.load_verify_locations(cafile=path)
    except ssl.SSLError:
        raise ValueError(f"{shown_file(path)} holds no certificate in PEM") from None
    except OSError as error:
        raise ValueError(f"{shown_file(path)} cannot be read: {error.strerror}") from None


def check_chain(certificate: Path, key: Path) -> None:
    """Raise ValueError if a certificate and its key cannot be used together."""
    load_chain(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), certificate, key)


def check_roots(path: Path) -> Path:
    """Return `path`. Raises ValueError if the file holds no certificates."""
    load_roots(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), path)
    return path


def _no_password() -> str:
    """Refuse keys with a password: otherwise OpenSSL would ask for it on the terminal."""
    raise ValueError("the key has a password: give one without")


class Watch:
    """A set of files, and their last known state."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._known: dict[Path, Mark] = {}
        self._last: dict[Path, Mark] = {}
        self.follow(paths)

    def follow(self, paths: Iterable[Path], read: Mapping[Path, Mark] | None = None) -> None:
        """Watch these from now on, and those that were `read`, which maps each to its state then.

        The current state of another new one counts as known.
        """
        known = {**(read or {}), **self._known}
        paths = {*paths, *(read or ())}
        self._known = {path: known[path] if path in known else mark(path) for path in paths}

    def changed(self) -> bool:
        """Poll; True, once, if the files differ from what is known and have stopped changing."""
        before, self._last = self._last, self._look()
        if self._last == self._known or self._last != before:
            return False
        self._known = self._last
        return True

    def take_note(self) -> None:
        """Take the current state as known, before the files are read."""
        self._known = self._look()

    def _look(self) -> dict[Path, Mark]:
        return {path: mark(path) for path in self._known}


def mark(path: Path) -> Mark:
    """Look at a file: equal marks mean that it has not changed."""
    try:
        status = path.stat()
    except OSError:
        return None
    if not S_ISREG(status.st_mode):
        return None  # a pipe changes by being read, and can be read only once
    what = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
    return *what, status.st_uid, status.st_gid, status.st_mode
