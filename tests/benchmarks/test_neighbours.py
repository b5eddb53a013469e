"""`benchmarks.neighbours` sends what the limits allow."""

import pytest

from benchmarks.neighbours_bodies import NEIGHBOURS
from router.api.endpoints import ENDPOINTS
from router.api.limits import Limits
from router.api.request import parse
from router.settings.model import LimitSettings


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_each_is_allowed(name: str) -> None:
    """Each is read and checked without an error, and fits `limits.body`."""
    sent, limits = NEIGHBOURS[name](), LimitSettings()
    endpoint = ENDPOINTS[sent.path]
    assert len(sent.body) <= limits.body
    Limits(limits).check(endpoint, parse(endpoint, sent.body, b""))
