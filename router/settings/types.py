"""Types of settings' fields, and their base model.

URLs of workers, names, patterns of models, addresses. Values with a unit (durations, sizes, shares)
are parsed strictly, so that a forgotten unit is an error and not a surprise. Secrets are read from
the environment or from a file, and never shown.
"""

import os
import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Self, TypeGuard, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    PlainSerializer,
    SecretStr,
    SerializationInfo,
    StrictInt,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, core_schema

from router.runtime.quote import shown, shown_file

_MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_BYTES = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
}
DURATION_PATTERN = f"^[0-9]{{1,9}}({'|'.join(_MILLISECONDS)})$"
DURATION_OR_OFF_PATTERN = f"{DURATION_PATTERN}|^off$"
SIZE_PATTERN = f"^[0-9]{{1,9}}({'|'.join(_BYTES)})$"
_PERCENT = r"(100|[0-9]{1,2}(?:\.[0-9]{1,3})?)%"


def parse_duration(value: object) -> float:
    """`30s` → 30.0 seconds."""
    return _quantity(value, _MILLISECONDS, "duration", "30s") / 1000


def parse_duration_or_off(value: object) -> float | None:
    """`30s` → 30.0 seconds, `off` → None."""
    if value is None or value == "off":
        return None
    try:
        seconds = parse_duration(value)
    except ValueError as error:
        raise ValueError(f"{error}, or off") from None
    if seconds <= 0:
        raise ValueError("must be longer than 0s, or off")
    return seconds


def parse_share(value: object) -> float:
    """`0.2` or `20%` → 0.2."""
    share = -1.0
    if isinstance(value, int | float) and not isinstance(value, bool):
        share = value
    elif isinstance(value, str) and (match := re.fullmatch(_PERCENT, value, re.ASCII)):
        share = float(match[1]) / 100
    if not 0 <= share <= 1:  # -1.0 if it is not a number at all
        raise ValueError(
            f"{shown(value)} is not a share: write a number from 0 to 1, such as 0.2, or 20%"
        )
    return float(share)


def parse_size(value: object) -> int:
    """`16MiB` → 16777216 bytes."""
    return _quantity(value, _BYTES, "size", "16MiB")


def format_duration(seconds: float) -> str:
    """30.0 → `30s`; the inverse of `parse_duration`."""
    milliseconds = round(seconds * 1000)
    if milliseconds / 1000 != seconds:
        return f"{seconds:g}s"  # a strategy's default, finer than a setting can express
    return _shortest(milliseconds, _MILLISECONDS)


def format_duration_or_off(seconds: float | None) -> str:
    """None → `off`; the inverse of `parse_duration_or_off`."""
    return "off" if seconds is None else format_duration(seconds)


def format_share(share: float) -> int | float:
    """Return 1.0 as 1, and 0.2 as it is."""
    return int(share) if share.is_integer() else share


def format_size(size: int) -> str:
    """16777216 → `16MiB`; the inverse of `parse_size`."""
    return _shortest(size, _BYTES)


def _quantity(value: object, units: dict[str, int], what: str, example: str) -> int:
    match = re.fullmatch(r"([0-9]{1,9})([A-Za-z]+)", value) if isinstance(value, str) else None
    if match is None or match[2] not in units:
        raise ValueError(
            f"{shown(value)} is not a {what}: write a whole number and a unit"
            f" ({', '.join(units)}), such as {example}"
        )
    return int(match[1]) * units[match[2]]


def _shortest(amount: int, units: dict[str, int]) -> str:
    """Return the exact notation with the smallest number."""
    exact = [(amount // factor, unit) for unit, factor in units.items() if amount % factor == 0]
    number, unit = min(exact, key=itemgetter(0))
    return f"{number}{unit}"


Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": DURATION_PATTERN}),
]
"""Seconds, written with a unit."""

DurationOrOff = Annotated[
    float | None,
    BeforeValidator(parse_duration_or_off),
    PlainSerializer(format_duration_or_off, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": DURATION_OR_OFF_PATTERN}),
]
"""Seconds, written with a unit; None is written `off`."""

Share = Annotated[
    float,
    BeforeValidator(parse_share),
    PlainSerializer(format_share, when_used="json"),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "minimum": 0, "maximum": 1},
                {"type": "string", "pattern": rf"^{_PERCENT}$"},
            ]
        }
    ),
]
"""A part of a whole, 0 to 1, written as `0.2` or `20%`."""

Size = Annotated[
    int,
    BeforeValidator(parse_size),
    PlainSerializer(format_size, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": SIZE_PATTERN}),
]
"""Bytes, written with a unit."""


@dataclass(frozen=True, slots=True)
class Address:
    """Host and port of a socket; an IPv6 host is written in brackets and kept without them."""

    host: str
    port: int

    @classmethod
    def parse(cls, value: object) -> Self:
        """Read `host:port` or `[::1]:port`. Raises ValueError with a sentence."""
        if isinstance(value, cls):
            return value
        match = re.fullmatch(r"(\[.+\]|[^\[\]:]+):([0-9]{1,5})", str(value))
        if not isinstance(value, str) or not match or not _is_host(match[1]):
            raise ValueError(
                f"{shown(value)} is not an address: write host:port,"
                ' such as 127.0.0.1:8080 or "[::1]:8080"'
            )
        if int(match[2]) > 65535:
            raise ValueError(f"{shown(value)} is not an address: a port is at most 65535")
        return cls(match[1].strip("[]"), int(match[2]))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it; a name other than localhost may be anywhere."""
        if self.host.lower() == "localhost":
            return True
        try:
            address = ip_address(self.host)
        except ValueError:
            return False
        mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        return (mapped or address).is_loopback

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @classmethod
    def __get_pydantic_core_schema__(cls, _: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls.parse, serialization=core_schema.to_string_ser_schema(when_used="json")
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, _: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"type": "string", "pattern": r"^(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}$"}


def _is_host(text: str) -> bool:
    try:
        if text.startswith("["):
            return "%" not in text and bool(IPv6Address(text[1:-1]).packed)
        if re.fullmatch(r"[0-9.]+", text):
            return bool(IPv4Address(text).packed)
    except ValueError:
        return False
    return re.fullmatch(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?", text) is not None


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
    match = re.fullmatch(r"(https?)://([^/?#\s]+)([^\s]*)", text)
    if match is None:
        raise ValueError(f"{shown(value)} is not a worker's URL: write http://host:port")
    scheme, authority, rest = match.groups()
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


@dataclass(frozen=True, slots=True)
class Matching:
    """A text that a pattern matches; of another one, `sentence` says what to write."""

    pattern: str
    sentence: str

    def check(self, value: object) -> str:
        """Return the text. Raises ValueError."""
        if not isinstance(value, str) or not re.fullmatch(self.pattern, value):
            raise ValueError(f"{shown(value)} {self.sentence}")
        return value

    def __get_pydantic_core_schema__(
        self, source: object, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(
        self, _: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"type": "string", "pattern": self.pattern}


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
    str,
    Matching(
        r"^[A-Za-z0-9._:\[\]-]{1,259}$",
        "is not a name: write 1 to 259 letters, digits and . _ : - [ ]",
    ),
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

SECRET_PATTERN = r"^(\$\{[A-Za-z_][A-Za-z0-9_]*\}|file:/.+)$"  # noqa: S105
MAX_SECRET_FILE_BYTES = 64 << 10


def resolve_secret(value: object) -> str:
    """Return the secret that `${NAME}` or `file:/path` refers to. No error message contains it."""
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    text = value if isinstance(value, str) else ""
    if match := re.fullmatch(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}", text):
        origin = f"environment variable {match[1]}"
        secret = os.environ.get(match[1])
        if secret is None:
            raise ValueError(f"{origin} is not set")
    elif text.startswith("file:/"):
        origin = shown_file(text.removeprefix("file:"))
        secret = _read_secret(text.removeprefix("file:"), origin)
    elif text.startswith("file:"):
        raise ValueError("the path of a secret's file must be absolute: file:/path")
    else:
        raise ValueError(
            "a secret is never written here: give ${NAME} for an environment variable,"
            " or file:/path for a file that holds it"
        )
    if not secret:
        raise ValueError(f"{origin} is empty")
    if re.fullmatch(r"[\x20-\x7e]+", secret) is None:
        raise ValueError(f"{origin} holds characters other than printable ASCII")
    return secret


def _read_secret(path: str, origin: str) -> str:
    try:
        if not Path(path).is_file():  # a pipe would block, and a device may never end
            raise ValueError(f"{origin} does not exist or is not a plain file")
        with Path(path).open("rb") as file:
            return file.read(MAX_SECRET_FILE_BYTES).decode("latin-1").strip()
    except OSError as error:
        raise ValueError(f"{origin} cannot be read: {error.strerror}") from None


#: The serialisation context for another process of this router, and the mark before a secret in it;
#: settings files are never read with it.
SEALED = {"sealed": True}
SEALED_MARK = "\0secret:"


def _hide(secret: SecretStr | str, info: SerializationInfo) -> str:
    if info.context is not SEALED:
        return "***"
    return SEALED_MARK + (secret if isinstance(secret, str) else secret.get_secret_value())


Secret = Annotated[
    SecretStr,
    BeforeValidator(resolve_secret),
    PlainSerializer(_hide, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": SECRET_PATTERN}),
]
"""A `SecretStr`, read from the environment or a file; `get_secret_value()` returns it."""
