"""Tools as chat templates get them: fields in the order of the engine's models.

vLLM entrypoints/generate/base/protocol.py, `FunctionDefinition`.
"""

from collections.abc import Mapping
from typing import Any

from router.rendering.decoded import Json
from router.rendering.errors import Unlike

Tool = dict[str, Any]


def chat_tools(given: Json) -> list[Tool] | None:
    """Return the tools of a chat request; None if there are none. Raises Unlike."""
    if given is None:
        return None
    if not isinstance(given, list) or not given:
        raise Unlike("odd tools")
    return [_chat_tool(one) for one in given]


def _chat_tool(given: Json) -> Tool:
    if not isinstance(given, dict) or given.get("type", "function") != "function":
        raise Unlike("odd tools")
    deferred = given.get("defer_loading")
    made: Tool = {"type": "function", "function": definition(given.get("function"), deferred)}
    return made if deferred is None else {**made, "defer_loading": deferred}


def definition(given: Json, deferred: Json = None) -> Tool:
    """Return a function's definition; `deferred` is its tool's `defer_loading`. Raises Unlike."""
    if not isinstance(given, Mapping):
        raise Unlike("odd tools")
    name, description, parameters = map(given.get, ("name", "description", "parameters"))
    if (
        not isinstance(name, str)
        or not isinstance(description, str | None)
        or not isinstance(parameters, dict | None)
    ):
        raise Unlike("odd tools")
    own = given.get("defer_loading")
    flags = {"strict": given.get("strict"), "defer_loading": deferred if own is None else own}
    if not all(isinstance(flag, bool | None) for flag in (*flags.values(), deferred)):
        raise Unlike("odd tools")
    made: Tool = {"name": name, "description": description, "parameters": parameters}
    return made | {name: flag for name, flag in flags.items() if flag is not None}


def ordered(given: Mapping[str, Any], first: tuple[str, ...]) -> dict[str, Any]:
    """Return the fields with those in `first` first, in that order."""
    known = {name: given[name] for name in first if name in given}
    return known | {name: value for name, value in given.items() if name not in known}
