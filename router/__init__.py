"""The front door: bytes in, bytes out."""

from importlib.util import find_spec

__version__ = "0.1.0"


def build_kind() -> str:
    """Return how this copy was built: "compiled", or "plain Python" (see hatch_build.py)."""
    spec = find_spec("router.dispatch.dispatcher")
    return "plain Python" if ((spec and spec.origin) or "").endswith(".py") else "compiled"
