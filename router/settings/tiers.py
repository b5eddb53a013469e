"""`tiers:` in the YAML: the tiers behind the engines' GPUs, and their initial load speeds."""

from typing import Annotated, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    StrictBool,
    StrictInt,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from router.kv.lmcache.engine_chunks import LARGEST_SEED, EngineChunking, Hash
from router.kv.lmcache.names import Chunking
from router.settings.controller import BASE_PATTERN, base_url
from router.settings.secret import Secret
from router.settings.sessions import RedisUrl
from router.settings.types import Model, Wait
from router.settings.units import Size
from strategies.cost.tiers import Loads


def _coordinator(value: object) -> str:
    return base_url(value, "a coordinator's")


CoordinatorUrl = Annotated[
    str, BeforeValidator(_coordinator), WithJsonSchema({"type": "string", "pattern": BASE_PATTERN})
]


class HostSettings(Model):
    """L1: blocks in the memory of the worker's host."""

    enabled: StrictBool = True
    """Whether blocks there count, with the strategy kvaware. Default: true."""
    bandwidth: Size = Field(default=25 << 30, gt=0)
    """Bytes per second that a worker loads from it, until that is measured. Default: 25GiB."""


class LmcacheSettings(Model):
    """Where LMCache's server (0.5) keeps chunks for all workers; one of `redis`, `coordinator`."""

    redis: RedisUrl | None = None
    """Redis that holds the chunks: `redis://host:port`. Default: none."""
    password: Secret | None = None
    """Its password: `${NAME}` or `file:/path`. Default: none."""
    coordinator: CoordinatorUrl | None = None
    """LMCache's coordinator, whose directory is asked: `http://host:port`. Default: none."""
    model: str | None = None
    """The model as engines were given it. Default: the name that clients ask for."""
    gpus: Annotated[StrictInt, Field(ge=1, le=255)] = 1
    """GPUs of a worker, tensor times pipeline parallel. Default: 1."""
    chunk: Annotated[StrictInt, Field(ge=16, le=65_536)] = 256
    """Tokens of a chunk, as LMCache's `--chunk-size` says. Default: 256."""
    names: Literal["server", "engine"] = "server"
    """Who names chunks: LMCache's server, or LMCache in the engine's own process, in a Redis.
    Default: server."""
    hash: Hash = "builtin"
    """How LMCache in the engine hashes, its `pre_caching_hash_algorithm`: `builtin`, `sha256` or
    `sha256_cbor`. Default: builtin."""
    seed: Annotated[str, Field(pattern=r"^[0-9]{1,10}$")] | None = None
    """PYTHONHASHSEED of the engines, in quotes; `builtin` needs it. Default: none, not set."""
    dtype: Annotated[str, Field(pattern=r"^[a-z0-9_]{1,32}$")] = "bfloat16"
    """The KV cache's type, as LMCache in the engine calls it. Default: bfloat16."""
    deadline: Wait = 0.02
    """How long a decision waits for it; after that it ignores L2. Default: 20ms."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.redis is None) == (self.coordinator is None):
            raise ValueError("needs either redis or coordinator")
        if self.names == "engine" and self.redis is None:
            raise ValueError("names: engine needs redis, not a coordinator")
        if self.names == "engine" and self.hash == "builtin" and self.seed is None:
            raise ValueError(
                "needs seed: what the hash builtin makes hangs on the engines' PYTHONHASHSEED"
            )
        return self

    @field_validator("seed")
    @classmethod
    def _startable(cls, seed: str | None) -> str | None:
        if seed is not None and int(seed) > LARGEST_SEED:
            raise ValueError(f"{seed} is beyond {LARGEST_SEED}, with which no Python starts")
        return seed

    @property
    def chunking(self) -> Chunking:
        """How LMCache's server cuts and names chunks."""
        return Chunking(self.chunk, self.gpus, self.model)

    @property
    def naming(self) -> Chunking | EngineChunking:
        """How chunks in Redis are cut and named, by LMCache's server or in the engine."""
        if self.names == "server":
            return self.chunking
        return EngineChunking(self.chunk, self.gpus, self.model, self.hash, self.seed, self.dtype)


class SharedSettings(Model):
    """L2: blocks on a disk, or in a store that all workers share."""

    enabled: StrictBool = True
    """Whether blocks there count, with the strategy kvaware. Default: true."""
    bandwidth: Size = Field(default=6 << 30, gt=0)
    """Bytes per second that a worker loads from it, until that is measured. Default: 6GiB."""
    promotes: Literal["gpu", "l1"] = "gpu"
    """Where a worker keeps what it loaded, beyond what events tell: its GPU, as LMCache's server
    does, or `l1` too (`--l2-prefetch-policy retain`; LMCache in the engine). Default: gpu."""
    lmcache: LmcacheSettings | None = None
    """Where LMCache keeps blocks that no event announces. Default: none, events alone tell."""


class TiersSettings(Model):
    """Tiers behind the engines' GPUs, for the strategy kvaware."""

    bytes_per_token: Size = Field(default=128 << 10, gt=0)
    """Bytes of one token in the KV cache, all layers and GPUs together. Default: 128KiB."""
    l1: HostSettings = HostSettings()
    """L1: blocks in the memory of the worker's host."""
    l2: SharedSettings = SharedSettings()
    """L2: blocks on a disk, or in a store that all workers share."""

    @property
    def l1_told(self) -> bool:
        """Whether the settings imply that workers have an L1; with LMCache they always have one."""
        lmcache = self.l2.enabled and self.l2.lmcache is not None
        return self.l1.enabled and (lmcache or "l1" in self.model_fields_set)

    def loads(self) -> Loads:
        """Return the tiers' initial load speeds, before anything is learned."""
        size = self.bytes_per_token
        l1 = self.l1.bandwidth / size if self.l1.enabled else None
        l2 = self.l2.bandwidth / size if self.l2.enabled else None
        return Loads(l1, l2, promotes=self.l2.promotes == "l1")
