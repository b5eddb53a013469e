"""`controller:` in the YAML: a remote controller that knows what workers hold."""

import re
from typing import Annotated

from pydantic import BeforeValidator, WithJsonSchema, model_validator

from router.runtime.quoting import shown
from router.settings.secret import Secret
from router.settings.types import Model, Wait, refuse_user

BASE_PATTERN = r"^https?://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?/?$"


def base_url(value: object, whose: str, instead: str | None = None) -> str:
    """Check the URL of a service and return it without a trailing slash.

    `instead`: the setting that its key belongs in. Raises ValueError with a sentence.
    """
    text = value if isinstance(value, str) else ""
    refuse_user(text, f"{whose} URL", instead)
    if not re.fullmatch(BASE_PATTERN[1:-1], text):
        raise ValueError(f"{shown(value)} is not {whose} URL: write http://host:port")
    return text.removesuffix("/")


def _url(value: object) -> str:
    return base_url(value, "a controller's", "key")


ControllerUrl = Annotated[
    str, BeforeValidator(_url), WithJsonSchema({"type": "string", "pattern": BASE_PATTERN})
]


class ControllerSettings(Model):
    """A controller of its own; a bare URL stands for one with defaults."""

    url: ControllerUrl
    """Where `warmroute controller` listens: `http://host:port`. Required."""
    key: Secret | None = None
    """Key sent to it as a bearer token: `${NAME}` or `file:/path`. Default: none."""
    deadline: Wait = 0.02
    """How long a decision waits for it; after that it goes by what was sent before. Default:
    20ms."""

    @model_validator(mode="before")
    @classmethod
    def _from_url(cls, value: object) -> object:
        return {"url": value} if isinstance(value, str) else value
