"""Decoded JSON."""

from typing import Any, TypeAlias

#: Any JSON value: string, number, true, false, null, or a list or object of these.
Json: TypeAlias = Any
