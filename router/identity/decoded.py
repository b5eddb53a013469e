"""Decoded JSON."""

from typing import Any, TypeAlias

#: What a client wrote: strings, numbers, true, false, null, lists and objects of these.
Json: TypeAlias = Any
