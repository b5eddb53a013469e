"""A table of raw requests, sent in one piece, byte by byte, and cut anywhere."""

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.http.raw.judge import complaints
from tests.http.raw.play import Cut, bytewise, play, serves, whole
from tests.http.raw.row import Row
from tests.http.raw.table import DIFFERENCES, ROWS
from tests.support import Router, Stub, until

#: Rows with more bytes than this are sent in one piece only.
SMALL = 1500

SMALL_ROWS = [row for row in ROWS if row.size <= SMALL]
#: Without rows about values that the router checks only once the head is complete.
BYTEWISE_ROWS = [
    row for row in SMALL_ROWS if not row.name.startswith(("host/", "target/", "passing/"))
]


def check(door: Router, worker: Stub, row: Row, cut: Cut) -> None:
    """Play a row; check that the outcome is allowed and that the router goes on serving."""
    worker.requests.clear()
    seen = play(door.port, row, cut)
    assert serves(door.port)
    after = [request for request in worker.requests if b"\r\nx-request-id: after" in request]
    found = complaints(row, seen, [request for request in worker.requests if request not in after])
    assert not found, f"{row.name}: {'; '.join(found)}"
    assert len(after) == 1
    until(door.idle)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_in_one_piece(door: Router, worker: Stub, row: Row) -> None:
    """The outcome is one that the row allows, and no refused request reaches a worker."""
    check(door, worker, row, whole)


@pytest.mark.parametrize("row", BYTEWISE_ROWS, ids=lambda row: row.name)
def test_byte_by_byte(door: Router, worker: Stub, row: Row) -> None:
    """Sending byte by byte makes no difference."""
    check(door, worker, row, bytewise)


@settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(row=st.sampled_from(SMALL_ROWS), places=st.lists(st.integers(0, SMALL), max_size=6))
def test_cut_anywhere(door: Router, worker: Stub, row: Row, places: list[int]) -> None:
    """Cutting a request in any few places makes no difference."""

    def cut(data: bytes) -> list[bytes]:
        cuts = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
        return [data[start:end] for start, end in pairwise(cuts)]

    check(door, worker, row, cut)


def test_the_table_is_in_order() -> None:
    """Row names are unique, every row has a source, and every difference names existing rows."""
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names)
    assert all(row.rfc.startswith("RFC ") and row.allowed for row in ROWS)
    for difference in DIFFERENCES:
        assert any(name.startswith(difference) for name in names), difference
