"""Fuzz KV events, guided by coverage: `python tests/fuzz/kv_events.py -max_total_time=60`.

Any bytes are accepted or refused with a counted reason; nothing else is raised, and the
index does not exceed its bound. Needs the extra `fuzz`.
"""

import sys
from itertools import count
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[2]))
with atheris.instrument_imports(include=["controller"]):
    from controller.events.decode import BadEvent, decode
    from controller.events.source import UNEXPECTED, EventSource
    from controller.index.index import Index

from tests.fuzz.seeds import PAYLOADS

LIMIT = 1 << 20

_index = Index(LIMIT)
_source = EventSource(_index, "w", replays=True)
_time = count()
_rounds = [0]
"""That of the last replay that was asked for."""


def one(data: bytes) -> None:
    """Run one input: the first byte is the action, two are the sequence, the rest is payload."""
    now = next(_time) / 10
    what, sequence = (data[0] % 8 if data else 0), int.from_bytes(data[1:3], "big") % 32
    payload = data[3:]
    if what < 4:
        requests = _source.heard(sequence, payload, now)
    elif what == 4:
        requests = _source.replayed(_rounds[-1], sequence, payload)
    elif what == 5:
        requests = _source.replay_ended(_rounds[-1], now)
    elif what == 6:
        requests = _source.replay_failed(_rounds[-1], now)
    else:
        try:
            decode(payload)
        except BadEvent:
            return
        requests = []
    _rounds[:] = [*_rounds, *(request.round for request in requests)][-1:]
    while _source.late:
        _source.catch_up()
    assert not _source.refused[UNEXPECTED]
    assert _index.bytes <= LIMIT


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
