"""Fuzz KV events, guided by coverage: `python tests/fuzz/kv_events.py -max_total_time=60`.

Any bytes are accepted or refused with a counted reason; nothing else is raised, and neither the
index nor the stream's pending messages exceed their bounds. Needs the extra `fuzz`.
"""

import sys
from itertools import count
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[2]))
with atheris.instrument_imports(include=["controller"]):
    from controller.events.decode import BadEvent, decode
    from controller.events.source import UNEXPECTED, EventSource
    from controller.events.stream import MAX_PENDING_BYTES
    from controller.index.index import Index

from tests.fuzz.seeds import PAYLOADS

LIMIT = 1 << 20

_index = Index(LIMIT)
_source = EventSource(_index, "w", replays=True)
_time = count()


def one(data: bytes) -> None:
    """Run one input: the first byte is the action, two are the sequence, the rest is payload."""
    now = next(_time) / 10
    what, sequence = (data[0] % 8 if data else 0), int.from_bytes(data[1:3], "big") % 32
    payload, stream = data[3:], _source.stream
    if what < 4:
        _source.heard(sequence, payload, now)
    elif what == 4:
        _source.replayed(stream._round, sequence, payload)
    elif what == 5:
        _source.replay_ended(stream._round, now)
    elif what == 6:
        _source.replay_failed(stream._round, now)
    else:
        try:
            decode(payload)
        except BadEvent:
            return
    while _source.late:
        _source.catch_up()
    assert not _source.refused[UNEXPECTED]
    assert _index.bytes <= LIMIT
    assert stream._pending_bytes <= MAX_PENDING_BYTES


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    """Start with messages as engines send them; then mutate as usual."""
    if len(data) > 3:
        mutated: bytes = atheris.Mutate(data, max_size)
        return mutated
    first = bytes((0, 0, seed % 32))
    return (first + PAYLOADS[seed % len(PAYLOADS)])[:max_size]


if __name__ == "__main__":
    atheris.Setup(sys.argv, one, custom_mutator=mutate)
    atheris.Fuzz()
