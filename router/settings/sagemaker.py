"""Settings of the paths that are compatible with SageMaker."""

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import BeforeValidator, WithJsonSchema, model_validator

from router.runtime.quoting import shown
from router.settings.secret import Secret
from router.settings.types import Capacity, Model, ModelName, Name, Some

ENDPOINT_PATTERN = r"^[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}$"
PREFIX_PATTERN = r"^(/[A-Za-z0-9._~-]+)*$"
#: Longest body in bytes that SageMaker accepts (API reference of InvokeEndpoint).
BODY = 6 << 20


def _endpoint(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(ENDPOINT_PATTERN[1:-1], value):
        raise ValueError(
            f"{shown(value)} is not an endpoint's name: write 1 to 63 letters, digits and hyphens"
        )
    return value


def _prefix(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(PREFIX_PATTERN[1:-1], value):
        raise ValueError(f"{shown(value)} is not a path: write it like /llm, without a last slash")
    return value


EndpointName = Annotated[
    str, BeforeValidator(_endpoint), WithJsonSchema({"type": "string", "pattern": ENDPOINT_PATTERN})
]
Prefix = Annotated[
    str, BeforeValidator(_prefix), WithJsonSchema({"type": "string", "pattern": PREFIX_PATTERN})
]


class EndpointSettings(Model):
    """A name that answers; a bare name stands for an endpoint of the only model."""

    name: EndpointName
    """As clients write it: `EndpointName`. Required."""
    model: ModelName | None = None
    """Model of requests that name none. Default: the only one there is."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: object) -> object:
        return value if isinstance(value, Mapping | cls) else {"name": value}


class SigningKeySettings(Model):
    """A pair of keys as AWS has them."""

    access_key: Name
    """Which one it is: sent with every request. Required."""
    secret_key: Secret
    """What requests are signed with: `${NAME}` or `file:/path`. Required."""


class SageMakerSettings(Model):
    """The paths of SageMaker's runtime API, for boto3 and compatible clients."""

    endpoints: Some[EndpointSettings] = ()
    """Names that answer: each a name, or a mapping of `name` and `model`. Default: every name."""
    prefix: Prefix | None = None
    """Prefix of all these paths, such as `/llm`. Default: none."""
    body: Capacity = BODY
    """Longest body of an invocation. Default: 6MiB."""
    sigv4: Some[SigningKeySettings] = ()
    """Keys for signatures: every request to these paths must be signed with one; `auth` must say
    who may use the other paths. Default: none, signatures are ignored."""
