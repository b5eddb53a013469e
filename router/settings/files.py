"""Checks files and folders named in settings when these are read, not when they are first needed.

No error message shows their content.
"""

import os
import re
import ssl
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer, ValidationInfo, WithJsonSchema

from router.runtime.quote import shown, shown_file
from router.settings.watch import mark


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
