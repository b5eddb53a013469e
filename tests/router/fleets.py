"""The helpers of `tests/fleet/fleets.py`, for the tests that are still here."""

from tests.fleet.fleets import choice, fleet, prompt

__all__ = ["choice", "fleet", "prompt"]
