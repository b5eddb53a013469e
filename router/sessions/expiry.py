"""The end of a session as SageMaker and workers write it. Pure."""

from datetime import UTC, datetime
from functools import lru_cache

_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
_MARK = "expires="


def written(expires: float) -> str:
    """Write seconds since 1970 as UTC in whole seconds, such as `2026-01-02T03:04:05Z`."""
    return _written(int(expires))


@lru_cache(maxsize=4096)  # every response within a session includes it
def _written(expires: int) -> str:
    return datetime.fromtimestamp(expires, UTC).strftime(_FORMAT)


def announced(key: str, expires: float) -> str:
    """Return the value of the header that announces a new session (shape
    `NewSessionResponseHeader`)."""
    return f"{key}; Expires={written(expires)}"


def read(value: str) -> tuple[str, float | None]:
    """Parse a worker's announcement: the id, and the session's end if given.

    The value has `; Expires=` as SageMaker documents it, or is the id alone: AWS's container
    library leaves the rest out if the engine keeps the sessions itself.
    """
    key, _, rest = value.partition(";")
    when = rest.strip()
    if not when.lower().startswith(_MARK):
        return key.strip(), None
    try:
        ends = datetime.strptime(when[len(_MARK) :], _FORMAT).replace(tzinfo=UTC)
    except ValueError:
        return key.strip(), None
    return key.strip(), ends.timestamp()
