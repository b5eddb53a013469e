"""What engines announce about one prompt, as bytes of KV events."""

from array import array

import msgspec

from controller.events.source import EventSource
from strategies.api import Prompt
from strategies.prefix.block_keys import even_chain, even_root

IDS = array("I", range(100, 228)).tobytes()


def prompt(tokens: int = 129, salt: str = "") -> Prompt:
    """Return a prompt whose first 128 tokens are known."""
    chains = {size: even_chain(even_root("", salt), IDS, size) for size in (16, 32)}
    return Prompt("m", tokens, blocks=chains)


def stored(first: int, number: int, size: int = 16, **more: object) -> dict[str, object]:
    """Announce blocks of the prompt from `first` on; their names give place and size."""
    ids = memoryview(IDS).cast("I").tolist()[first * size : (first + number) * size]
    return {
        "type": "BlockStored",
        "block_hashes": [size * 1000 + place for place in range(first, first + number)],
        "parent_block_hash": size * 1000 + first - 1 if first else None,
        "token_ids": ids,
        "block_size": size,
        "medium": "GPU",
        **more,
    }


def batch(*events: object, made: float = 0.0) -> bytes:
    """Return a batch of events as an engine publishes it, at `made` by its clock."""
    return msgspec.msgpack.encode([made, list(events), 0])


def push(source: EventSource, *events: object) -> None:
    """Hand events to a source."""
    source.push(batch(*events), 0.0)
