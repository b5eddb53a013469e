"""Field types of the settings (worker URLs, names, model patterns, ...), and the base model."""

import re
from typing import Annotated, TypeGuard, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictInt,
    WithJsonSchema,
)

from router.runtime.quoting import shown
from router.settings.address import Address
from router.settings.units import Duration, Size

NAME_PATTERN = r"^[A-Za-z0-9._:\[\]-]{1,259}$"
URL_PATTERN = r"^https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?/?$"
ENDPOINT_PATTERN = (
    r"^(tcp://(\*|\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}|ipc://[!-~]{1,100})$"
)
MODEL_PATTERN = r"^[^*\s]*\*?$"


class Model(BaseModel):
    """Settings never change once read; a key nobody knows is an error."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
    )


def parse_url(value: object) -> str:
    """Check the base URL of a worker and return it without a trailing slash."""
    url_address(value)
    return str(value).removesuffix("/")


def url_address(value: object) -> Address:
    """Return the host and port that a worker's URL leads to. Raises ValueError with a sentence."""
    text = value if isinstance(value, str) else ""
    refuse_user(text, "a worker's URL", "api_key")
    found = re.fullmatch(r"(https?)://([^/?#\s]+)([^\s]*)", text)
    if found is None:
        raise ValueError(f"{shown(value)} is not a worker's URL: write http://host:port")
    scheme, authority, rest = found.groups()
    if rest not in {"", "/"}:
        raise ValueError(
            f"{shown(value)} has a path or a query: write only http://host:port,"
            " requests bring their own path"
        )
    if re.search(r":[0-9]+$", authority.rpartition("]")[2]) is None:
        authority += ":443" if scheme == "https" else ":80"
    try:
        address = Address.parse(authority)
    except ValueError:
        address = Address("", 0)
    if not address.port:
        raise ValueError(f"{shown(value)} is not a worker's URL: write http://host:port")
    return address


def refuse_user(text: str, what: str, instead: str | None = None) -> None:
    """Raise ValueError if a URL names a user; `instead`: the setting that is for the password."""
    if "@" in text:
        use = f"; use {instead}" if instead else ""
        raise ValueError(f"{what} holds no user name or password{use}")


def _name(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(NAME_PATTERN[1:-1], value):
        raise ValueError(
            f"{shown(value)} is not a name: write 1 to 259 letters, digits and . _ : - [ ]"
        )
    return value


def _is_model(text: str) -> bool:
    return bool(text and re.fullmatch(MODEL_PATTERN[1:-1], text) and text.isprintable())


def _model_name(value: object) -> str:
    text = value if isinstance(value, str) else ""
    if not _is_model(text):
        raise ValueError(
            f"{shown(value)} is not a model pattern: write an exact name,"
            " or how it begins with one * at the end"
        )
    return text


def _whole_model_name(value: object) -> str:
    if not isinstance(value, str) or "*" in value or not _is_model(value):
        raise ValueError(f"{shown(value)} is not the name of a model: write it in full, without *")
    return value


def is_endpoint(value: object) -> TypeGuard[str]:
    """Whether it has the form of a ZeroMQ address."""
    return isinstance(value, str) and re.fullmatch(ENDPOINT_PATTERN[1:-1], value) is not None


def _endpoint(value: object) -> str:
    if not is_endpoint(value):
        raise ValueError(
            f"{shown(value)} is not a ZeroMQ address: write tcp://host:port or ipc://path;"
            " with * for the host, engines dial in"
        )
    if value.startswith("tcp://") and not 0 < int(value.rpartition(":")[2]) < 1 << 16:
        # ZeroMQ would take another one, the rest of the division by 65536.
        raise ValueError(f"{shown(value)}: the port must be 1 to 65535")
    return value


def _not_empty(value: object) -> object:
    if isinstance(value, list | tuple) and not value:
        raise ValueError("must not be empty")
    return value


def _positive_duration(value: float) -> float:
    if value <= 0:
        raise ValueError("must be longer than 0s")
    return value


def _positive_size(value: int) -> int:
    if value <= 0:
        raise ValueError("must be more than 0B")
    return value


WorkerUrl = Annotated[
    str,
    BeforeValidator(parse_url),
    WithJsonSchema({"type": "string", "pattern": URL_PATTERN}),
]
Name = Annotated[
    str, BeforeValidator(_name), WithJsonSchema({"type": "string", "pattern": NAME_PATTERN})
]
Endpoint = Annotated[
    str, BeforeValidator(_endpoint), WithJsonSchema({"type": "string", "pattern": ENDPOINT_PATTERN})
]
ModelName = Annotated[
    str,
    BeforeValidator(_whole_model_name),
    WithJsonSchema({"type": "string", "pattern": r"^[^*\s]+$"}),
]
ModelPattern = Annotated[
    str,
    BeforeValidator(_model_name),
    WithJsonSchema({"type": "string", "pattern": MODEL_PATTERN, "minLength": 1}),
]
T = TypeVar("T")
Some = Annotated[
    tuple[T, ...], BeforeValidator(_not_empty), Field(json_schema_extra={"minItems": 1})
]
"""A list of at least one item. (Pydantic's own check also fails if the only item is invalid.)"""
Count = Annotated[StrictInt, Field(ge=1)]
Whole = Annotated[StrictInt, Field(ge=0)]
"""A whole number; 0 is allowed."""
Wait = Annotated[Duration, AfterValidator(_positive_duration)]
Capacity = Annotated[Size, AfterValidator(_positive_size)]
