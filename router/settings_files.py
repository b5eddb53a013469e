"""Files that settings name: there and readable when the settings are read, not hours later."""

import re
from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer, ValidationInfo, WithJsonSchema

from router.units import shown


def _readable(value: object, info: ValidationInfo) -> Path:
    """Find a file, from the folder of the settings file where its path is relative."""
    if not isinstance(value, str | Path) or not re.fullmatch(r"[^\0]+", str(value)):
        raise ValueError(f"{shown(value)} is not a path: write where the file is")
    path = Path((info.context or {}).get("folder", "")) / value
    try:
        if not path.is_file():
            raise ValueError(f"file {shown(str(path))} does not exist or is not a plain file")
        with path.open("rb"):
            return path
    except OSError as error:
        raise ValueError(f"file {shown(str(path))} cannot be read: {error.strerror}") from None


ReadableFile = Annotated[
    Path,
    BeforeValidator(_readable),
    PlainSerializer(str, when_used="json"),
    WithJsonSchema({"type": "string", "minLength": 1}),
]
"""A path, relative to the folder of the settings file or else to the working directory."""
