"""SageMaker's paths, and what they name. Pure.

`/invocations` is what the platform calls on a container; the others are what clients call on the
platform (botocore `sagemaker-runtime/2017-05-13`, and the developer guide's page on
OpenAI-compatible endpoints).
"""

import re
from enum import Enum
from typing import NamedTuple

#: The platform's health check of a container, also usable by other probes.
PING = "/ping"
#: The path that the platform calls on a container.
INVOCATIONS = "/invocations"
_ENDPOINT = re.compile(
    r"/endpoints/(?P<name>[^/]+)(?:/inference-components/(?P<part>[^/]+))?/(?P<rest>.+)"
)
#: `EndpointName` of the service model.
_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9])*")
_LONGEST_NAME = 63


class Operation(Enum):
    """The operation called."""

    INVOKE = "invocations"
    STREAM = "invocations-response-stream"
    ASYNC = "async-invocations"
    OPENAI = "openai"


_BY_PATH = {one.value: one for one in (Operation.INVOKE, Operation.STREAM, Operation.ASYNC)}


class Route(NamedTuple):
    """A parsed path."""

    operation: Operation
    name: str = ""
    """The endpoint's name; empty on a container's own path."""
    component: str = ""
    """The inference component's name, if given."""
    path: str = ""
    """The part after `/openai`, for that operation."""


def route(path: str, prefix: str = "") -> Route | None:
    """Parse a path; None if it is not SageMaker's."""
    if not path.startswith(prefix):
        return None
    path = path[len(prefix) :]
    if path == INVOCATIONS:
        return Route(Operation.INVOKE)
    found = _ENDPOINT.fullmatch(path)
    if found is None:
        return None
    name, component, rest = found["name"], found["part"] or "", found["rest"]
    if rest.startswith("openai/v1/"):
        return Route(Operation.OPENAI, name, component, rest[len("openai") :])
    operation = _BY_PATH.get(rest)
    return Route(operation, name) if operation and not component else None


def is_name(name: str) -> bool:
    """Whether this is a valid name of an endpoint."""
    return len(name) <= _LONGEST_NAME and _NAME.fullmatch(name) is not None


def speaks_aws(path: str) -> bool:
    """Whether errors on this path, whatever its prefix, have AWS's form.

    Below an endpoint's `/openai/` they have OpenAI's.
    """
    found = _ENDPOINT.search(path)
    if found is None:
        return path.endswith(INVOCATIONS) or "/endpoints/" in path
    return not found["rest"].startswith("openai/")
