"""The type for secrets in settings: read from the environment or from a file, and never shown."""

import os
import re
from pathlib import Path
from typing import Annotated

from pydantic import (
    BeforeValidator,
    PlainSerializer,
    SecretStr,
    SerializationInfo,
    WithJsonSchema,
)

from router.runtime.quoting import shown_file

SECRET_PATTERN = r"^(\$\{[A-Za-z_][A-Za-z0-9_]*\}|file:/.+)$"  # noqa: S105
_SECRET_FILE_BYTES = 64 << 10


def resolve_secret(value: object) -> str:
    """Return the secret that `${NAME}` or `file:/path` refers to. No error message contains it."""
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    text = value if isinstance(value, str) else ""
    if found := re.fullmatch(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}", text):
        origin = f"environment variable {found[1]}"
        secret = os.environ.get(found[1])
        if secret is None:
            raise ValueError(f"{origin} is not set")
    elif text.startswith("file:/"):
        origin = shown_file(text.removeprefix("file:"))
        secret = _read_secret(text.removeprefix("file:"), origin)
    elif text.startswith("file:"):
        raise ValueError("the path of a secret's file must be absolute: file:/path")
    else:
        raise ValueError(
            "a secret is never written here: give ${NAME} for an environment variable,"
            " or file:/path for a file that holds it"
        )
    if not secret:
        raise ValueError(f"{origin} is empty")
    if re.fullmatch(r"[\x20-\x7e]+", secret) is None:
        raise ValueError(f"{origin} holds characters other than printable ASCII")
    return secret


def _read_secret(path: str, origin: str) -> str:
    try:
        if not Path(path).is_file():  # a pipe would block, and a device may never end
            raise ValueError(f"{origin} does not exist or is not a plain file")
        with Path(path).open("rb") as file:
            return file.read(_SECRET_FILE_BYTES).decode("latin-1").strip()
    except OSError as error:
        raise ValueError(f"{origin} cannot be read: {error.strerror}") from None


#: The serialisation context for another process of this router, and the mark before a secret in it;
#: settings files are never read with it.
SEALED = {"sealed": True}
SEALED_MARK = "\0secret:"


def _hide(secret: SecretStr | str, info: SerializationInfo) -> str:
    if info.context is not SEALED:
        return "***"
    return SEALED_MARK + (secret if isinstance(secret, str) else secret.get_secret_value())


Secret = Annotated[
    SecretStr,
    BeforeValidator(resolve_secret),
    PlainSerializer(_hide, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": SECRET_PATTERN}),
]
"""A `SecretStr`, read from the environment or a file; `get_secret_value()` returns it."""
