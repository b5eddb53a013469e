"""Drive an engine in real time: let each step's duration pass, then deliver its tokens.

Each step is due its duration after the end of the previous step, not after "now", so that being
late once does not slow the clock. Steps that are overdue are computed in one go and their tokens
delivered together. An idle engine costs nothing.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from simulator.engine.core import Engine, Step
from simulator.engine.request import EngineRequest
from simulator.kv.blocks import Change

logger = logging.getLogger("simulator")

#: Called with the number of new tokens and whether they were the last.
Sink = Callable[[int, bool], None]

#: How many overdue steps are computed before the event loop has its turn.
_MAX_STEPS_PER_TURN = 32
#: The delay that causes a warning, and the least time between two warnings.
_WARN_LATENESS_S = 0.25
_WARN_INTERVAL_S = 5.0


class EngineClock:
    """An engine's clock: `speed` simulated seconds pass per real second."""

    def __init__(
        self,
        name: str,
        engine: Engine,
        speed: float,
        publish: Callable[[Sequence[Change]], None],
    ) -> None:
        if speed <= 0:
            raise ValueError("speed must be above zero")
        self.engine = engine
        self.speed = speed
        #: How many times slower than its profile the engine runs (fault `slow`).
        self.slowdown = 1.0
        self._name = name
        self._publish = publish
        self._sinks: dict[str, Sink] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.Handle | None = None
        self._step: Step | None = None
        self._due = 0.0
        self._late = 0.0
        self._warned = float("-inf")

    @property
    def behind_s(self) -> float:
        """Return the real seconds by which the last turn came late."""
        return self._late if self._timer is not None else 0.0

    def submit(self, request: EngineRequest, sink: Sink) -> None:
        """Queue a request whose tokens go to `sink`; raise what `Engine.add` raises."""
        self.engine.add(request, self._loop.time())
        self._sinks[request.request_id] = sink
        if self._timer is None:
            self._timer = self._loop.call_soon(self._begin)

    def abort(self, request_id: str) -> None:
        """Forget a request; its sink is not called again."""
        if self._sinks.pop(request_id, None) is not None:
            self.engine.abort(request_id)

    def stop(self) -> None:
        """Stop the clock and drop all requests without calling their sinks."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._step = None
        self._sinks.clear()
        self.engine.clear()

    def _begin(self) -> None:
        self._due = self._loop.time()
        self._turn()

    def _turn(self) -> None:
        """End the step that is due, then compute further steps until one ends in the future."""
        now = self._loop.time()
        self._late = max(0.0, now - self._due)
        if self._late > _WARN_LATENESS_S:
            self._warn(now)
        tokens: dict[str, int] = {}
        ended: set[str] = set()
        for _ in range(_MAX_STEPS_PER_TURN):
            if self._step is not None:
                self._collect(self._step, tokens, ended)
                self._step = None
            if not self.engine.busy:
                break
            self._step = self.engine.step()
            self._due += self._step.duration_s * self.slowdown / self.speed
            if self._due > now:
                break
        self._deliver(tokens, ended)
        if self._step is not None:
            self._timer = self._loop.call_at(self._due, self._turn)
        else:
            # A sink may have queued another request meanwhile.
            self._timer = self._loop.call_soon(self._begin) if self.engine.busy else None

    def _collect(self, step: Step, tokens: dict[str, int], ended: set[str]) -> None:
        for request in step.emitted:
            tokens[request.request_id] = tokens.get(request.request_id, 0) + 1
        for request in step.finished:
            ended.add(request.request_id)
        if step.changes:
            self._publish(step.changes)

    def _deliver(self, tokens: dict[str, int], ended: set[str]) -> None:
        sinks = self._sinks
        for request_id, count in tokens.items():
            last = request_id in ended
            sink = sinks.pop(request_id, None) if last else sinks.get(request_id)
            if sink is not None:
                sink(count, last)

    def _warn(self, now: float) -> None:
        if now - self._warned >= _WARN_INTERVAL_S:
            self._warned = now
            logger.warning(
                "%s is %.2f s behind its clock: fewer workers or a lower speed would fit this "
                "machine",
                self._name,
                self._late,
            )
