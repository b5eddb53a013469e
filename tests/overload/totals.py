"""What the router's metrics tell as a whole, whatever the labels of their series."""

from tests.support import Router


def samples(router: Router, family: str, ending: str) -> list[float]:
    """Return the values of all series of a family whose names end so."""
    [found] = [one for one in router.door.metrics.collect() if one.name == f"warmroute_{family}"]
    return [one.value for one in found.samples if one.name.endswith(ending)]


def total(router: Router, family: str) -> float:
    """Return how much a family of counters has counted."""
    return sum(samples(router, family, "_total"))
