"""Settings of sessions and of the paths that are compatible with SageMaker.

Sessions have a lifetime, names that clients give them, and a place where they are kept.
"""

import os
import re
from collections.abc import Mapping
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, StrictBool, WithJsonSchema, model_validator

from router.api.errors import CREDENTIALS
from router.runtime.quote import shown
from router.settings.types import (
    Capacity,
    Count,
    DurationOrOff,
    Matching,
    Model,
    ModelName,
    Name,
    Secret,
    Some,
    Wait,
    refuse_user,
)

HEADER_PATTERN = r"^[a-z0-9][a-z0-9-]{0,63}$"
REDIS_PATTERN = r"^rediss?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?(/[0-9]{1,3})?$"
TTL_S = 1200.0
#: Short enough that the end of a session can still be written as a date.
MAX_TTL_S = 10_000 * 86400
#: Environment variables that tell AWS's containers how long a session lasts, and their units in
#: seconds: from aws-samples' example server, and from model-hosting-container-standards.
_TTL_VARIABLES = {"SES_TTL_MIN": 60.0, "SAGEMAKER_SESSIONS_EXPIRATION": 1.0}

_SECRET = CREDENTIALS | {b"cookie", b"proxy-authorization"}


def _header(value: object) -> str:
    text = value.lower() if isinstance(value, str) else ""
    if not re.fullmatch(HEADER_PATTERN[1:-1], text):
        raise ValueError(f"{shown(value)} is not a header's name: write it like x-session-id")
    if text.encode() in _SECRET:
        raise ValueError(f"{text} holds what nobody may see: ids of sessions are listed and stored")
    return text


def _redis(value: object) -> str:
    text = value if isinstance(value, str) else ""
    refuse_user(text, "a Redis URL", "password")
    if not re.fullmatch(REDIS_PATTERN[1:-1], text) or not _leads_somewhere(text):
        raise ValueError(f"{shown(value)} is not a Redis URL: write redis://host:port")
    return text


def _leads_somewhere(url: str) -> bool:
    """Whether there can be such a port and, in brackets, such an address."""
    try:
        return urlsplit(url).port != 0
    except ValueError:
        return False


def _lasting(seconds: float) -> float:
    if seconds > MAX_TTL_S:
        raise ValueError("must be at most 10000d")
    return seconds


HeaderName = Annotated[
    str, BeforeValidator(_header), WithJsonSchema({"type": "string", "pattern": HEADER_PATTERN})
]
FieldName = Annotated[
    str,
    Matching(r"^[A-Za-z_][A-Za-z0-9_]{0,63}$", "is not a field's name: write it like user_id"),
]
RedisUrl = Annotated[
    str, BeforeValidator(_redis), WithJsonSchema({"type": "string", "pattern": REDIS_PATTERN})
]


class RedisSettings(Model):
    """Redis in which several routers share their sessions."""

    url: RedisUrl
    """`redis://host:port`, or `rediss://` with TLS; `/N` after it chooses a database. Required."""
    username: str | None = None
    """User of Redis' access lists. Default: none."""
    password: Secret | None = None
    """Its password: `${NAME}` or `file:/path`. Default: none."""
    timeout: Wait = 0.25
    """How long one query may take; after that sessions are routed by the hash of their id for a
    second. Default: 250ms."""


class SessionSettings(Model):
    """Sessions, in pools whose strategy is `session`."""

    ttl: Annotated[Wait, AfterValidator(_lasting)] | None = None
    """How long a session lasts. Default: 20m, or what `SES_TTL_MIN` (minutes) or
    `SAGEMAKER_SESSIONS_EXPIRATION` (seconds) say in the environment."""
    sliding: StrictBool = False
    """Every use restarts `ttl`. Default: false."""
    longest: DurationOrOff = None
    """How long a session may last in all, however often it is used; or `off`. Default: off."""
    most: Count = 100_000
    """Most sessions open at once in one pool; to make room, the client key that has most loses its
    least recently used one. Default: 100000."""
    header: HeaderName = "x-session-id"
    """Header in which OpenAI clients name their session. Default: x-session-id."""
    field: FieldName | None = None
    """Field of the body that names it where no header does, such as `user`. Default: none."""
    create: StrictBool = True
    """An unknown id sent by an OpenAI client starts a session. Default: true."""
    on_worker_lost: Literal["rebind", "error"] = "rebind"
    """What happens when a session's worker is gone: `rebind` moves it to another one, `error` ends
    it with an error and cannot be combined with `spill`. Default: rebind."""
    redis: RedisSettings | None = None
    """Redis in which several routers share their sessions, and which worker has which response.
    Default: none, in memory."""

    @property
    def lifetime(self) -> float:
        """Seconds that a session lasts: by the settings, else by the environment."""
        if self.ttl:
            return self.ttl
        variable = ttl_of_environment()
        return variable[1] if variable else TTL_S


def ttl_of_environment() -> tuple[str, float] | None:
    """Return the environment variable that gives the TTL, and its seconds; None if none does.

    Raises ValueError with a sentence.
    """
    for name, unit in _TTL_VARIABLES.items():
        text = os.environ.get(name, "")
        most = int(MAX_TTL_S / unit)
        if text and not (re.fullmatch("[0-9]{1,9}", text) and 0 < int(text) <= most):
            raise ValueError(f"{name} in the environment must be a whole number from 1 to {most}")
        if text:
            return name, int(text) * unit
    return None


#: The longest body that SageMaker accepts (API reference of InvokeEndpoint).
MAX_BODY_BYTES = 6 << 20


EndpointName = Annotated[
    str,
    Matching(
        r"^[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}$",
        "is not an endpoint's name: write 1 to 63 letters, digits and hyphens",
    ),
]
Prefix = Annotated[
    str,
    Matching(r"^(/[A-Za-z0-9._~-]+)*$", "is not a path: write it like /llm, without a last slash"),
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
    body: Capacity = MAX_BODY_BYTES
    """Longest body of an invocation. Default: 6MiB."""
    sigv4: Some[SigningKeySettings] = ()
    """Keys for signatures: every request to these paths must be signed with one; `auth` must say
    who may use the other paths. Default: none, signatures are ignored."""
