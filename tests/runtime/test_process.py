"""File descriptors: the limit is raised as far as possible, with a warning if it is too low."""

import resource

import pytest

from router.runtime.process import RESERVED_DESCRIPTORS, raise_descriptors


def test_the_soft_limit_is_raised(caplog: pytest.LogCaptureFixture) -> None:
    """The soft limit becomes the hard one; if that is too low, one warning has the numbers."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    hard = before[1]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, hard), hard))
        raise_descriptors(10)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
        assert not caplog.records
        if hard != resource.RLIM_INFINITY:
            raise_descriptors((hard - RESERVED_DESCRIPTORS) // 2)
            assert not caplog.records
            raise_descriptors(hard)
            [warning] = caplog.messages
            assert f"at most {hard} file descriptors" in warning
            assert (
                f"clients.connections: {hard} may need {2 * hard + RESERVED_DESCRIPTORS}" in warning
            )
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
