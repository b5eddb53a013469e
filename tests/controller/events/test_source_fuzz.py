"""Arbitrary messages are applied or refused with a counted reason, and nothing grows."""

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.events.source import UNEXPECTED, EventSource
from controller.events.stream import ReplayRequest
from controller.index.index import Index
from tests.controller.events.test_decode import EVENTS, JUNK, batch

PAYLOADS = (
    st.binary(max_size=100)
    | JUNK.map(msgspec.msgpack.encode)
    | EVENTS.map(lambda events: batch(*events))
)
SEQUENCES = st.integers(0, 12) | st.integers(0, 2**64 - 1)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(("live", "live", "replay", "end", "fail", "tick", "open", "gone")),
        SEQUENCES,
        PAYLOADS,
    ),
    max_size=30,
)
LIMIT = 1 << 16


@settings(max_examples=100, deadline=None)
@given(STEPS, st.booleans())
def test_a_source_survives_anything(steps: list[tuple[str, int, bytes]], replays: bool) -> None:
    """No exception is raised, and the index stays within its bound."""
    index = Index(LIMIT)
    source = EventSource(index, "w", replays=replays)
    asked = 0
    for now, (what, number, payload) in enumerate(steps):
        asks: list[ReplayRequest] = []
        if what == "live":
            asks = source.heard(number, payload, float(now))
        elif what == "replay":
            asks = source.replayed(asked, number, payload)
        elif what == "end":
            asks = source.replay_ended(asked, float(now))
        elif what == "fail":
            asks = source.replay_failed(asked, float(now))
        elif what == "tick":
            asks = source.tick(float(now) * 400)
        elif what == "open":
            asks = source.opened(float(now))
        else:
            source.disconnected()
        for _ in range(min(now % 3, len(source.late))):
            source.catch_up()
        asked = asks[-1].round if asks else asked
    assert index.bytes <= LIMIT
    assert not source.refused[UNEXPECTED]
