"""What the processes of one router tell each other about responses. Pure."""

from msgspec import Struct


class ResponseOwner(Struct, array_like=True, tag=6, gc=False):
    """A worker has made a response that it keeps."""

    key: str
    """A hash of the response's id."""
    worker: str
    tenant: str
    """Name of the key that it was made for."""
    process: str
    """When the worker's process began, if it tells."""


class OwnerQuery(Struct, array_like=True, tag=7, gc=False):
    """Who knows which worker keeps this response? The answer is a `ResponseOwner`."""

    key: str
