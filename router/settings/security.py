"""Settings of keys, CORS origins and TLS."""

import re
from collections.abc import Mapping
from typing import Annotated, Self, cast

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    SecretStr,
    SerializerFunctionWrapHandler,
    StrictBool,
    WithJsonSchema,
    field_validator,
    model_serializer,
    model_validator,
)

from router.runtime.quoting import shown
from router.settings.address import Address
from router.settings.errors import refusal, refuse
from router.settings.files import ReadableFile, check_chain, check_roots
from router.settings.secret import Secret
from router.settings.types import Model, Name, Some

KEY_LENGTH = 16
ORIGIN_PATTERN = r"^(\*|[a-z][a-z0-9+.-]*://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?)$"


def _strong(key: SecretStr) -> SecretStr:
    text = key.get_secret_value()
    if len(text) < KEY_LENGTH:
        raise ValueError(
            f"must be at least {KEY_LENGTH} characters long; `openssl rand -hex 32` makes one"
        )
    if " " in text:
        raise ValueError("holds a space, which no client can send in a key")
    return key


def _origin(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(ORIGIN_PATTERN[1:-1], value):
        raise ValueError(
            f"{shown(value)} is not an origin: write it as browsers do, such as"
            ' https://app.example or http://localhost:3000, without a path; or "*" for all'
        )
    return value


Origin = Annotated[
    str, BeforeValidator(_origin), WithJsonSchema({"type": "string", "pattern": ORIGIN_PATTERN})
]


class KeySettings(Model):
    """One key that lets clients in; a bare secret stands for a key with a default name."""

    name: Name = Field(default_factory=str)
    """Label in logs, unique in its list. Default: key-1, key-2… by its place."""
    key: Annotated[Secret, AfterValidator(_strong)]
    """`${NAME}` or `file:/path`; at least 16 characters, without spaces. Required."""
    engine_fields: StrictBool = False
    """Its clients may tell engines what routers and engines tell each other, such as
    `kv_transfer_params`; only in `auth.keys`. Default: false."""

    @model_validator(mode="before")
    @classmethod
    def _from_secret(cls, value: object) -> object:
        if value is None:
            raise ValueError("must be a secret, or a mapping of its name and key")
        return value if isinstance(value, Mapping | cls) else {"key": value}


def _told_apart(keys: tuple[KeySettings, ...]) -> tuple[KeySettings, ...]:
    """Give keys without a name one by their place; refuse duplicate names and keys."""
    keys = tuple(
        key if key.name else _with_name(key, f"key-{place}") for place, key in enumerate(keys, 1)
    )
    refusals = []
    for place, key in enumerate(keys):
        for first, other in enumerate(keys[:place]):
            if key.name == other.name:
                message = f"{shown(key.name)} is already the name of [{first}]"
                refusals.append(refusal((place, "name"), message))
            if key.key == other.key:
                refusals.append(refusal((place, "key"), f"the same key as [{first}]"))
    if refusals:
        raise refuse("keys", refusals)
    return keys


def _with_name(key: KeySettings, name: str) -> KeySettings:
    """Set a default name, which still counts as not set."""
    copy = key.model_copy(update={"name": name})
    copy.model_fields_set.discard("name")
    return copy


class AuthSettings(Model):
    """Who may use the inference paths: `none` lets everyone in, `keys` only those who have one."""

    keys: Some[KeySettings]
    """Keys that let clients in: each a secret, or a mapping of `name` and `key`. Required."""
    separate_caches: StrictBool = False
    """Each key has a KV cache of its own: prompts of other keys are never found in it. Prefixes
    that all have in common are then computed once for each key. Default: false."""

    @model_validator(mode="wrap")
    @classmethod
    def _from_word(cls, value: object, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if value == "none":
            return cast("Self", cls.model_construct(set(), keys=()))
        if not isinstance(value, Mapping | cls):
            raise ValueError('must be none, or a mapping with "keys"')  # it may hold a secret
        return handler(value)

    @field_validator("keys")
    @classmethod
    def _unique(cls, keys: tuple[KeySettings, ...]) -> tuple[KeySettings, ...]:
        return _told_apart(keys)

    @model_serializer(mode="wrap", when_used="json")
    def _written(self, handler: SerializerFunctionWrapHandler) -> object:
        return handler(self) if self.keys else "none"


class AdminSettings(Model):
    """Where `/workers`, `/metrics` and the other paths for operators are served, and to whom."""

    listen: Address | None = None
    """Host and port of their own. Default: beside the inference paths, on the top `listen`."""
    keys: Some[KeySettings] = ()
    """Keys that may read them, as in `auth.keys`. Default: those of `auth`."""

    @field_validator("keys")
    @classmethod
    def _unique(cls, keys: tuple[KeySettings, ...]) -> tuple[KeySettings, ...]:
        idle = "opens no inference path: only keys of `auth` can have it"
        if found := [place for place, key in enumerate(keys) if key.engine_fields]:
            raise refuse("keys", [refusal((place, "engine_fields"), idle) for place in found])
        return _told_apart(keys)


Roots = Annotated[ReadableFile, AfterValidator(check_roots)]


class TlsSettings(Model):
    """What the router shows to clients, and asks of them, where it speaks TLS."""

    certificate: ReadableFile
    """File of the certificate and those that lead to its root, PEM. Required."""
    key: ReadableFile
    """File of the certificate's key, PEM, without a password. Required."""
    client_ca: Roots | None = None
    """File of the roots that clients' certificates must come from, PEM. Default: none, and
    clients need no certificate."""

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        check_chain(self.certificate, self.key)
        return self


class WorkerTlsSettings(Model):
    """What the router expects of a worker at `https://`, and shows to it."""

    ca: Roots | None = None
    """File of the roots that the worker's certificate must come from, PEM. Default: those of the
    system."""
    certificate: ReadableFile | None = None
    """File of the certificate that the router shows to the worker, PEM. Default: none."""
    key: ReadableFile | None = None
    """File of that certificate's key, PEM, without a password. Default: none."""

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        if self.certificate and self.key:  # `contradictions` reports one without the other
            check_chain(self.certificate, self.key)
        return self
