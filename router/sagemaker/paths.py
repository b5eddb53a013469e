"""SageMaker's paths: what they name, and who may ask for them. Pure.

`/invocations` is what the platform calls on a container; the others are what clients call on the
platform (botocore `sagemaker-runtime/2017-05-13`, and the developer guide's page on
OpenAI-compatible endpoints).
"""

import re
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from router.api.endpoints import ENDPOINTS, INVOCATIONS, MODELS, SMALL_BODY
from router.http.access import KeyCheck, Keys, PathRule
from router.responses.ids import stored
from router.sagemaker.sigv4 import SigningKeys
from router.settings.model import Settings

_ENDPOINT = re.compile(
    r"/endpoints/(?P<name>[^/]+)(?:/inference-components/(?P<part>[^/]+))?/(?P<rest>.+)"
)
#: `EndpointName` of the service model.
_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9])*")
_MAX_NAME = 63


class Operation(Enum):
    """The operation called."""

    INVOKE = "invocations"
    STREAM = "invocations-response-stream"
    ASYNC = "async-invocations"
    OPENAI = "openai"


_BY_PATH = {call.value: call for call in (Operation.INVOKE, Operation.STREAM, Operation.ASYNC)}


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
    match = _ENDPOINT.fullmatch(path)
    if match is None:
        return None
    name, component, rest = match["name"], match["part"] or "", match["rest"]
    if rest.startswith("openai/v1/"):
        return Route(Operation.OPENAI, name, component, rest[len("openai") :])
    operation = _BY_PATH.get(rest)
    return Route(operation, name) if operation and not component else None


def is_name(name: str) -> bool:
    """Whether this is a valid name of an endpoint."""
    return len(name) <= _MAX_NAME and _NAME.fullmatch(name) is not None


def path_rules(settings: Settings, keys: Keys | None) -> Callable[[str], PathRule | None]:
    """Return a function that gives the rules of these paths; `keys` open those of clients."""
    signing = settings.sagemaker.sigv4
    checked: KeyCheck | None = SigningKeys(signing, keys) if signing else keys
    prefix, limits = settings.sagemaker.prefix or "", settings.limits
    invocation = PathRule(checked, "POST", settings.sagemaker.body)
    openai = PathRule(checked, "POST", limits.longest(form=False))
    form = PathRule(checked, "POST", limits.longest(form=True))
    models = PathRule(checked, "GET", SMALL_BODY)

    def rule(path: str) -> PathRule | None:
        target = route(path, prefix)
        if target is None:
            return None
        if target.operation is not Operation.OPENAI:
            return invocation
        if (response := stored(target.path)) is not None:
            return PathRule(checked, response.methods, SMALL_BODY)
        if target.path == MODELS or target.path.startswith(MODELS + "/"):
            return models
        endpoint = ENDPOINTS.get(target.path)
        return form if endpoint is not None and endpoint.form else openai

    return rule
