"""A worker that tells a strategy nothing of its KV cache."""

from dataclasses import dataclass, field

from strategies.cost.load import Load
from strategies.cost.prefill import Pace


@dataclass(eq=False)
class Stand:
    """A worker as a strategy sees it, without a word about its room."""

    name: str = "w"
    load: Load = field(default_factory=Load)
    pace: Pace = field(default_factory=Pace)
    kv_tokens: int | None = None
    room_tokens: int | None = None
