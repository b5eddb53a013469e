"""Several serving processes on one port, and the parent process that supervises them.

The kernel spreads connections over the processes. The parent serves no requests. It reads the
settings, passes on signals, restarts a process that ends unexpectedly or hangs, and adds up all
metrics: whichever process is scraped asks the parent.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import msgspec
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily

from router.fleet.build import CannotBuild
from router.observe.merge import families, merged, merged_tokenizers, merged_workers, text
from router.observe.own_metrics import process_metrics
from router.one_process import refuse_what_needs_one
from router.processes.balance import Commons, Posts
from router.processes.channel import Refusal
from router.processes.child import Order
from router.processes.heartbeat import USUAL, Patience
from router.processes.place import Place
from router.processes.sealed import seal
from router.replicas.sockets import Wiring
from router.runtime import logs
from router.settings.address import Address
from router.settings.model import Settings

log = logging.getLogger("warmroute.processes")

#: Seconds that processes have to end beyond their own shutdown deadlines.
GRACE_S = 10.0


class Processes:
    """Serves with `count` processes."""

    def __init__(
        self,
        settings: Settings,
        count: int,
        listen: Address,
        admin: Address | None,
        patience: Patience = USUAL,
    ) -> None:
        """The addresses are reserved, each with a port; `patience` is for processes that hang."""
        self._settings = settings
        self._listen, self._admin = listen, admin
        self._told = False
        self._also: list[Callable[[], Iterable[Metric]]] = [process_metrics, self._lost]
        # TLS connections cannot be passed on: the handshake begins in the process that accepts.
        self._commons = None if settings.tls else Commons(count)
        self._wiring = Wiring(count)
        self._places = [
            Place(
                partial(self._order, number),
                self._answer,
                self._descriptors(number),
                partial(self._gone, number),
                number=number,
                silent=partial(self._shut, number),
                patience=patience,
            )
            for number in range(1, count + 1)
        ]

    async def run(self, started: Callable[[], None]) -> int:
        """Serve until told to stop, or until no process could begin to; return the exit code.

        `started` is called once each process serves, or has ended before that, which is tried
        again.
        """
        runs = [asyncio.create_task(place.run()) for place in self._places]
        try:
            served = await self._all_tried(runs)
            failed = not served and not self._told
            if served and not self._told:
                started()
            elif failed:
                log.error(
                    "none of the %d processes could begin to serve: the router ends", len(runs)
                )
                self.stop()
                self._kill()
            ended = await asyncio.gather(*runs)
        finally:
            self._kill()
            if self._commons is not None:
                self._commons.close()
            self._wiring.close()
        return 0 if all(ended) and not failed else 1

    def also(self, more: Callable[[], Iterable[Metric]]) -> None:
        """Include these metrics in every scrape."""
        self._also.append(more)

    def stop(self) -> None:
        """Begin the orderly shutdown; called again, end at once."""
        now, self._told = self._told, True
        for place in self._places:
            place.stop(now=now)
        ending = self._settings.shutdown
        grace = GRACE_S if now else ending.delay + ending.drain + GRACE_S
        asyncio.get_running_loop().call_later(grace, self._kill)

    async def change(self, settings: Settings) -> None:
        """Apply other settings in all processes. Raises CannotBuild; then nothing has changed."""
        refuse_what_needs_one(settings)
        before, self._settings = self._settings, settings
        sealed = seal(settings)
        # Those that serve come first: one that starts may hang, and judges if nobody else answers.
        silent, others = list[Place](), sorted(self._places, key=lambda place: not place.serves)
        try:
            while others and not await others[0].change(sealed):  # who answers judges for all
                silent.append(others.pop(0))
        except Refusal as refusal:
            self._settings = before
            for place in silent:
                place.tell("settings", seal(before))
            raise CannotBuild(str(refusal)) from None
        asked = [place.change(sealed) for place in others[1:] if place.serves]
        for place in others[1:]:
            if not place.serves:
                place.tell("settings", sealed)
        said = await asyncio.gather(*asked, return_exceptions=True)
        for problem in said:
            if isinstance(problem, BaseException):
                log.error("one process has not changed its settings: %s", problem)
        if settings.logs != before.logs:
            logs.set_up(settings.logs)

    async def _all_tried(self, runs: Sequence[asyncio.Task[bool]]) -> bool:
        """Wait until all processes serve or have ended, or are told to stop.

        Return whether any has served.
        """
        tried = asyncio.create_task(self._tried())
        await asyncio.wait({tried, *runs}, return_when=asyncio.FIRST_COMPLETED)
        tried.cancel()
        return any(place.ready.is_set() for place in self._places)

    async def _tried(self) -> None:
        for place in self._places:
            await place.tried.wait()

    def _order(self, number: int) -> Order:
        posts, wires = self._posts(number), self._wiring.wires(number - 1)
        return Order(number, seal(self._settings), self._listen, self._admin, posts, wires)

    def _descriptors(self, number: int) -> Sequence[int]:
        posts, wires = self._posts(number), self._wiring.wires(number - 1)
        return (*wires.all, *posts.all) if posts else wires.all

    def _posts(self, number: int) -> Posts | None:
        return self._commons.posts(number - 1) if self._commons else None

    def _gone(self, number: int, pid: int) -> None:
        self._shut(number)
        for place in self._places:
            place.tell("gone", msgspec.msgpack.encode((number - 1, pid)))

    def _shut(self, number: int) -> None:
        if self._commons is not None:
            self._commons.shut(number - 1)

    async def _answer(self, what: str, _: bytes) -> bytes:
        """Answer a process that asks for something merged from all processes. Raises Refusal."""
        if what == "metrics":
            said = await asyncio.gather(*(place.metrics() for place in self._places))
            own = families(metric for more in self._also for metric in more())
            return text(merged([*said, own]))
        if what == "workers":
            seen = await asyncio.gather(*(place.workers() for place in self._places))
            return merged_workers(one for one in seen if one is not None)
        if what == "tokenizers":
            seen = await asyncio.gather(*(place.tokenizers() for place in self._places))
            return merged_tokenizers(one for one in seen if one is not None)
        raise Refusal(f"nobody knows {what}")

    def _lost(self) -> Iterator[Metric]:
        yield CounterMetricFamily(
            "warmroute_processes_lost",
            "Processes that ended by themselves, or were killed as they hung.",
            sum(place.lost for place in self._places),
        )

    def _kill(self) -> None:
        for place in self._places:
            place.kill()
