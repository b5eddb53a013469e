"""Request and response models of the controller's HTTP API."""

from typing import Annotated, Any, Literal

import msgspec
from pydantic import AfterValidator, AliasChoices, BaseModel, Field

#: Most tokens, or keys, of a prompt in a query.
MAX_PROMPT_TOKENS = 4 << 20
MSGPACK = "application/msgpack"

BINARY = {"schema": {"type": "string", "format": "binary"}}
#: For the OpenAPI schema: bodies that are not JSON, and reasons for refusing a request.
TAKES_MSGPACK = {"requestBody": {"required": True, "content": {MSGPACK: BINARY}}}
_REFUSALS: dict[int, str] = {
    400: "What was sent is not what is expected here.",
    401: "A key is needed: `Authorization: Bearer …`.",
    404: "No such engine is registered.",
    409: "The engine is registered already, or there are blocks already.",
    413: "The body is too long.",
    429: "There are too many engines, or another snapshot is under way.",
}

InstanceId = Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]+$")]
Rank = Annotated[int, Field(ge=0, lt=1024)]


def _port(endpoint: str) -> str:
    """Check the port. Raises ValueError; otherwise a bad port would only show up in the log."""
    if endpoint.startswith("tcp://") and not 0 < int(endpoint.rpartition(":")[2]) < 1 << 16:
        raise ValueError("the port must be 1 to 65535")
    return endpoint


#: Mooncake clients send an empty string if they have no endpoint.
Endpoint = Annotated[
    str,
    Field(max_length=1024, pattern=r"^(tcp://.+:[0-9]{1,5}|ipc://.+)$"),
    AfterValidator(_port),
]
TokenId = Annotated[int, Field(ge=0, lt=1 << 32)]
Key = Annotated[int, Field(ge=0, lt=1 << 64)]


class EngineRegistration(BaseModel):
    """One engine that publishes KV events."""

    instance_id: InstanceId
    """The worker's name, for its events and in answers."""
    endpoint: Endpoint | Literal[""] | None = None
    """ZeroMQ address of its events; without one, they are pushed to `/events`."""
    replay_endpoint: Endpoint | Literal[""] | None = None
    dp_rank: Rank = 0
    tenant_id: str = "default"


class PromptQuery(BaseModel):
    """What is asked about a prompt."""

    model: str = ""
    lora_name: str | None = None
    cache_salt: str | None = None
    tenant_id: str = "default"
    instance_id: str | None = None
    """Only this worker; default: all."""
    block_size: int = Field(default=16, ge=1, le=65536)


class TokenQuery(PromptQuery):
    """By the prompt's tokens."""

    token_ids: list[TokenId] = Field(max_length=MAX_PROMPT_TOKENS)


class KeyQuery(PromptQuery):
    """By its chained keys, as `strategies.prefix.block_keys.even_chain` makes them."""

    seq_hashes: list[Key] = Field(
        max_length=MAX_PROMPT_TOKENS, validation_alias=AliasChoices("seq_hashes", "block_hash")
    )


class StreamState(BaseModel):
    """How one engine's stream stands."""

    instance_id: str
    dp_rank: int
    connected: bool
    state: str
    sequence: int
    epoch: int
    doubt: str
    seconds_since_event: float | None
    seconds_behind: float
    events: int
    counts: dict[str, int]
    refused: dict[str, int]


class HeldQuery(msgspec.Struct):
    """A router's question: chained keys of a prompt, by block size."""

    tokens: int
    keys: dict[int, list[int]]
    workers: list[str]
    l1: bool = True
    """Whether blocks in host memory count for that router; older routers do not send it."""


def refusals(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return a path's refusals for the OpenAPI schema, in addition to invalid fields."""
    return {status: {"description": _REFUSALS[status]} for status in statuses}
