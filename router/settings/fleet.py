"""Settings of probes and ejection: how the router tells whether a worker can serve."""

from router.settings.types import Count, Model, Wait
from router.settings.units import Share


class EjectionSettings(Model):
    """When a worker whose answers fail gets no requests for a while, though its probes succeed."""

    failures: Count = 5
    """Failed requests in a row, which others would have answered, that eject a worker.
    Default: 5."""
    first: Wait = 5.0
    """How long the first ejection lasts; each further one lasts longer. Default: 5s."""
    longest: Wait = 300.0
    """How long an ejection lasts at most. Default: 5m."""
    share: Share = 0.5
    """Most of a pool ejected at once, 0 to 1; 0: no worker ever is. Default: 0.5."""
    panic: Share = 0.5
    """If less than this share of a pool can serve, ejections are ignored, and workers that are
    too busy for their probes get requests; 0: never. Default: 0.5."""


class HealthSettings(Model):
    """How the router asks each worker whether it is ready, and learns from its answers."""

    interval: Wait = 2.0
    """Between two probes of one worker. Default: 2s."""
    timeout: Wait = 1.0
    """For the answer to one probe. Default: 1s."""
    fall: Count = 2
    """Failed probes in a row until a worker gets no requests. Default: 2."""
    rise: Count = 1
    """Good probes in a row until it gets requests again. Default: 1."""
    ejection: EjectionSettings = EjectionSettings()
    """When a worker whose answers fail gets no requests for a while, though its probes succeed."""
