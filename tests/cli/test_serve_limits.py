"""Descriptors: as many as may be had, and a word where they are too few."""

import resource

import pytest

from router.process import raise_descriptors


def test_the_soft_limit_is_raised(caplog: pytest.LogCaptureFixture) -> None:
    """To the hard one; and what that does not suffice for is said once, with the numbers."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    hard = before[1]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, hard), hard))
        raise_descriptors(10)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
        assert not caplog.records
        if hard != resource.RLIM_INFINITY:
            raise_descriptors(hard)
            assert f"at most {hard} file descriptors" in caplog.text
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
