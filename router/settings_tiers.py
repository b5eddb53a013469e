"""`tiers:` in the YAML: what engines keep behind their GPUs, and how fast it loads at first."""

from pydantic import Field, StrictBool

from router.settings_types import Model
from router.units import Size
from strategies.loads import Loads


class HostSettings(Model):
    """L1: blocks in the memory of the worker's host."""

    enabled: StrictBool = True
    """What lies there counts, with the strategy kvaware. Default: true."""
    bandwidth: Size = Field(default=25 << 30, gt=0)
    """Bytes a second that a worker loads from it, until that is measured. Default: 25GiB."""


class SharedSettings(Model):
    """L2: blocks on a disk, or in a store that all workers share."""

    enabled: StrictBool = True
    """What lies there counts, with the strategy kvaware. Default: true."""
    bandwidth: Size = Field(default=6 << 30, gt=0)
    """Bytes a second that a worker loads from it, until that is measured. Default: 6GiB."""


class TiersSettings(Model):
    """What engines keep behind their GPUs, for the strategy kvaware."""

    bytes_per_token: Size = Field(default=128 << 10, gt=0)
    """Bytes of one token in the KV cache, all layers and GPUs together. Default: 128KiB."""
    l1: HostSettings = HostSettings()
    """L1: blocks in the memory of the worker's host."""
    l2: SharedSettings = SharedSettings()
    """L2: blocks on a disk, or in a store that all workers share."""

    def loads(self) -> Loads:
        """How fast they load, before anything was learned."""
        size = self.bytes_per_token
        l1 = self.l1.bandwidth / size if self.l1.enabled else None
        l2 = self.l2.bandwidth / size if self.l2.enabled else None
        return Loads(l1, l2)
