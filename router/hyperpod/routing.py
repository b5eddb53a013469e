"""The routing strategy, and where requests name their session."""

from router.hyperpod.annotation import ANNOTATION
from router.hyperpod.fields import SPEC, Reading
from router.settings.errors import KeyPath

#: HyperPod's values of `routingStrategy`, the default first. Our strategies have the same names.
STRATEGIES = ("prefixaware", "kvaware", "session", "roundrobin")
#: The load balancer's algorithms if routing is not enabled, the default first, with our strategy.
ALGORITHMS = {"least_outstanding_requests": "leastload", "round_robin": "roundrobin"}
_ROUTING: KeyPath = (*SPEC, "intelligentRoutingSpec")
_STRATEGY: KeyPath = (*_ROUTING, "routingStrategy")
_ENABLED: KeyPath = (*_ROUTING, "enabled")
_ALGORITHM: KeyPath = (*SPEC, "loadBalancer", "routingAlgorithm")
#: HyperPod's `kvaware` with a session key: caches decide, and the session if they are equal.
_WITH_SESSIONS = {"name": "session", "over": "kvaware"}
_MOVING = {"spill": "1ms"}


def choose_strategy(reading: Reading, instead: str | None) -> str:
    """Set `strategy`; return its name, also if it is the default.

    `instead`: the strategy in our own settings, which takes the place of the manifest's.
    """
    reading.mapping(_ROUTING)
    enabled = reading.truth(_ENABLED, default=False)
    wanted = _wanted(reading, instead)
    algorithm = reading.choice(_ALGORITHM, list(ALGORITHMS), next(iter(ALGORITHMS)))
    if enabled:
        reading.mapped(_ENABLED, "strategy")
        reading.elsewhere(_ALGORITHM, "intelligent routing takes its place")
        reading.set(("strategy",), wanted, _STRATEGY)
        value = None if reading.get(_STRATEGY) else f"{wanted} (default)"
        reading.mapped(_STRATEGY, f"strategy: {wanted}", value)
        return wanted
    reading.elsewhere(_STRATEGY, "routing is not enabled (intelligentRoutingSpec.enabled)")
    if reading.get(_ALGORITHM) is None and reading.get(_ENABLED) is None:
        reading.mapped(_ENABLED, "strategy: prefixaware, as nothing else is asked for", "not given")
        return STRATEGIES[0]
    ours = ALGORITHMS[algorithm]
    reading.set(("strategy",), ours, _ALGORITHM)
    reading.mapped(_ENABLED, f"strategy: {ours}, as the load balancer does without it")
    reading.mapped(_ALGORITHM, f"strategy: {ours}")
    return ours


def _wanted(reading: Reading, instead: str | None) -> str:
    """Return the strategy that the manifest asks for.

    One that nobody knows is a mistake, as it is to HyperPod, unless another takes its place: what
    AWS may add must not keep a manifest from being used.
    """
    value = reading.text(_STRATEGY)
    if value is None or value in STRATEGIES:
        return value or STRATEGIES[0]
    if instead is not None:
        reading.lost(_STRATEGY, f"nobody knows this strategy; {ANNOTATION} says {instead}")
        return STRATEGIES[0]
    return reading.choice(
        _STRATEGY, STRATEGIES, STRATEGIES[0], f"; or give strategy in {ANNOTATION}"
    )


def name_session(
    reading: Reading, source: KeyPath, strategy: str, key: str | None, *, moves: bool
) -> None:
    """Set where requests name their session: `SESSION_KEY` in a worker's environment.

    HyperPod's strategies `session` and `kvaware` read it (its KV cache notebook). `moves`: sessions
    can move, as workers keep none themselves.
    """
    value = f"SESSION_KEY={key or '***'}"
    if not key:
        reading.lost(source, "a session's key has to be written here", value)
    elif strategy not in {"session", "kvaware"}:
        reading.lost(source, f"{strategy} knows no sessions; the strategy session does", value)
    else:
        # In practice a field's name has no hyphen, and a header's nearly always has one.
        setting = "header" if "-" in key else "field"
        reading.set(("session", setting), key, source)
        became = f"session.{setting}: {key}"
        if strategy == "kvaware":
            spill = _MOVING if moves else {}
            reading.set(("strategy",), _WITH_SESSIONS | spill, source)
            became += ", strategy: session over kvaware"
            became += ", spill: 1ms" if moves else ", as workers keep sessions themselves"
        reading.mapped(source, became, value)
