"""Values as pydantic reads them for vLLM, which is not strict: `"7"` is a number, `"on"` is true.

(pydantic-core, `input/shared.rs`; the conversion table in pydantic's documentation.)
"""

import re
from typing import Final

_TRUE: Final = frozenset(("1", "on", "t", "true", "y", "yes"))
#: The space around a number is Unicode's: Python's has four separators more.
_SPACE = r"[^\S\x1c-\x1f]*"
_WHOLE = re.compile(_SPACE + r"[+-]?[0-9]+(?:_[0-9]+)*(?:\.0+)?" + _SPACE)
#: Most characters of a number that are read.
_LONGEST: Final = 64


def true(value: object) -> bool:
    """Whether a field is true; what is no truth value is not."""
    if isinstance(value, str):
        return value.lower() in _TRUE
    return isinstance(value, int | float) and value == 1


def whole(value: object) -> int | None:
    """Return a field's whole number; None if it is none."""
    if isinstance(value, str):
        if len(value) > _LONGEST or not _WHOLE.fullmatch(value):
            return None
        return int(value.partition(".")[0])
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return int(value) if isinstance(value, int) else None
