"""Several serving processes on one port, and the parent process that supervises them.

The kernel spreads connections over the processes. The parent serves no requests. It reads the
settings, passes on signals, and adds up all metrics: whichever process is scraped asks the parent.
It restarts a process that ends unexpectedly, or that hangs: one that does not answer is killed, but
only after a while, because it may just be slow.
"""

import asyncio
import logging
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial

import msgspec
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily

from router.fleet.build import CannotBuild
from router.observe.merge import (
    Family,
    families,
    growing,
    merged,
    merged_tokenizers,
    merged_workers,
    text,
)
from router.observe.process import process_metrics
from router.processes.child import Order, seal
from router.reload import check_multiprocess
from router.replicas.channel import (
    USUAL,
    Channel,
    ChannelTimeouts,
    Hear,
    Lost,
    Refusal,
    Sign,
    watch,
)
from router.replicas.sockets import Wiring
from router.runtime import logs
from router.settings.model import Settings
from router.settings.types import Address

log = logging.getLogger("warmroute.processes")

#: Seconds until an ended process is restarted, doubled each time that it ends early again.
RESTART_DELAY_S, MAX_RESTART_DELAY_S = 0.1, 30.0
#: A process that ran for this many seconds did not end early.
MIN_UPTIME_S = 60.0
#: Seconds a process has to answer for its metrics or workers.
ANSWER_TIMEOUT_S = 1.0
#: Starts the child with this process's module path, and nothing else on it.
_RUN = (
    "import sys; sys.path = sys.argv[2:]; "
    "from router.processes.child import main; main(int(sys.argv[1]))"
)

_decode = msgspec.msgpack.Decoder(list[Family]).decode
#: What processes are asked for, and how their answers become one.
_MERGES = {"workers": merged_workers, "tokenizers": merged_tokenizers}


def _nothing(*_: int) -> None:
    """Ignore the event."""


class Place:
    """One of several processes, kept running."""

    def __init__(
        self,
        order: Callable[[], Order],
        answer: Hear,
        descriptors: Sequence[int] = (),
        gone: Callable[[int], None] = _nothing,
        *,
        number: int = 1,
        timeouts: ChannelTimeouts = USUAL,
        restart_delay_s: float = RESTART_DELAY_S,
    ) -> None:
        """`order` is called at every start; `answer` handles what the process asks.

        The process inherits `descriptors`. `gone` is called with its pid when it has ended.
        `timeouts` says how long it may not answer. `number` is that of its own log lines. One that
        has ended is restarted after `restart_delay_s`, if it did not end early.
        """
        self.ready = asyncio.Event()
        """Set once a process has begun to serve."""
        self.tried = asyncio.Event()
        """Set once a process has begun to serve, or has ended before that."""
        self.serves = False
        """The running process has begun to serve."""
        self._number = number
        self._served = False
        """The last process had begun to serve."""
        self._order = order
        self._answer = answer
        self._descriptors = tuple(descriptors)
        self._has_gone = gone
        self._timeouts = timeouts
        self._restart_delay_s = restart_delay_s
        self._watching: asyncio.Task[None] | None = None
        self.hangs = asyncio.Event()
        """Set while the running process does not answer."""
        self._told = asyncio.Event()
        self._process: Process | None = None
        self._channel: Channel | None = None
        self.lost = 0
        """Processes that ended by themselves, or were killed because they hung."""
        self._gone: list[Family] = []
        """The counters of processes that have ended."""
        self._counted: list[Family] = []
        """The counters of the running process, as last reported."""

    async def run(self) -> bool:
        """Keep a process running until told to stop; return whether the last one ended well."""
        loop, delay = asyncio.get_running_loop(), self._restart_delay_s / 2
        while not self._told.is_set():
            started = loop.time()
            try:
                code = await self._one()
                how = self._ended(code)
            except OSError as error:  # lack of memory or descriptors, which may pass
                code, how = 1, f"a process could not be started: [{self._number}]: {error}"
            if self._told.is_set():
                return code == 0
            self.lost += 1
            self.tried.set()
            delay = (
                self._restart_delay_s
                if loop.time() - started > MIN_UPTIME_S
                else min(MAX_RESTART_DELAY_S, 2 * delay)
            )
            log.error("%s; it is started again in %gs", how, delay)
            with suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._told.wait()
        return True

    def _ended(self, code: int) -> str:
        """Return a sentence on how the last process ended, which names it."""
        how = "ended unexpectedly" if self._served else "ended before it served"
        return f"a process {how} ({_how(code)}): [{self._number}], pid {self.pid}"

    @property
    def pid(self) -> int:
        """That of the process that was started last; 0 before the first."""
        return self._process.pid if self._process else 0

    async def _one(self) -> int:
        """Start a process and wait for its end; return its exit code."""
        self._served = False
        process, channel = await self._start()
        channel.tell("begin", msgspec.msgpack.encode(self._order()))
        if self._told.is_set():
            channel.tell("stop")
        self._watch(self._timeouts.starting)
        try:
            await channel.run()
            return await process.wait()
        finally:
            self._unwatch()
            self.hangs.clear()
            self.serves = False
            self._channel = None
            self._has_gone(process.pid)
            self._gone = merged([self._gone, self._counted])
            self._counted = []
            self.kill()

    async def _start(self) -> tuple[Process, Channel]:
        """Start a process, and open the channel to it. Raises OSError."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                end = theirs.fileno()
                process = self._process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-P", "-c", _RUN, str(end), *sys.path),
                    stdin=DEVNULL,
                    pass_fds=(end, *self._descriptors),
                    start_new_session=True,  # Ctrl-C reaches only the parent, which tells them
                )
            channel = self._channel = await Channel.open(ours, self._hear)
        except BaseException:
            ours.close()  # a process that was started ends by that
            raise
        return process, channel

    async def _hear(self, what: str, body: bytes) -> bytes:
        if what == "ready":
            self.ready.set()
            self.tried.set()
            self.serves = self._served = True
            self._unwatch()
            self._watch(self._timeouts)
        elif what == "counted":
            self._counted = growing(_decode(body))
        else:
            return await self._answer(what, body)
        return b""

    def _watch(self, timeouts: ChannelTimeouts) -> None:
        """Watch that the process answers; not during shutdown, which has its own deadlines."""
        if self._channel is not None and not self._told.is_set():
            watching = watch(self._channel, timeouts, partial(self._changed, timeouts))
            self._watching = asyncio.create_task(watching)

    def _unwatch(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None

    def _changed(self, timeouts: ChannelTimeouts, sign: Sign) -> None:
        pid = self.pid
        match sign:
            case Sign.SILENT:
                self.hangs.set()
                log.error(
                    "process %d has not answered for %gs: if it has not after %gs it is killed",
                    *(pid, timeouts.silent_s, timeouts.dead_s),
                )
            case Sign.BACK:
                self.hangs.clear()
                log.warning("process %d answers again", pid)
            case Sign.DEAD:
                log.error("process %d has not answered for %gs: killed", pid, timeouts.dead_s)
                self.kill()

    def stop(self, *, now: bool = False) -> None:
        """End the process in order, or at once if `now`; it is not restarted."""
        self._told.set()
        self._unwatch()
        if self._channel is not None:
            self._channel.tell("now" if now else "stop")

    def tell(self, what: str, body: bytes) -> None:
        """Send a message to the running process, if there is one."""
        if self._channel is not None:
            self._channel.tell(what, body)

    def kill(self) -> None:
        """Kill the process."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()

    async def change(self, settings: bytes) -> bool:
        """Send other settings; return whether the process has taken them. Raises Refusal.

        A process that hangs takes them once it answers again, an absent one when it starts. One
        that starts is waited for.
        """
        if self._channel is None:
            return False
        asking = asyncio.create_task(self._channel.ask("settings", settings))
        hanging = asyncio.create_task(self.hangs.wait())
        try:
            await asyncio.wait((asking, hanging), return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                asking.result()
                return True
        except Lost:
            return False
        finally:
            hanging.cancel()
            asking.cancel()  # the settings were sent; only the answer is not awaited
        log.error("process %d does not answer: it takes the new settings when it does", self.pid)
        return False

    async def metrics(self) -> list[Family]:
        """Return the metrics of the running process plus the counters of its predecessors."""
        channel = self._channel
        reply = await self.ask("metrics")
        now = self._counted
        if reply is not None and channel is self._channel:  # else it is part of `_gone` by now
            now = _decode(reply)
            self._counted = growing(now)
        return merged([self._gone, now])

    async def ask(self, what: str) -> bytes | None:
        """Return what the running process answers; None if it does not."""
        if self._channel is None or not self.ready.is_set():
            return None
        with suppress(TimeoutError, Lost, Refusal):
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await self._channel.ask(what)
        return None


def _how(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:  # most of the real-time signals have no names
        return f"signal {-code}"


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
        timeouts: ChannelTimeouts = USUAL,
        *,
        restart_delay_s: float = RESTART_DELAY_S,
        grace_s: float = GRACE_S,
    ) -> None:
        """The addresses are reserved, each with a port; `timeouts` is for processes that hang.

        `restart_delay_s` is as for `Place`. Processes that are told to end are killed `grace_s`
        after their own deadlines.
        """
        self._settings, self._grace_s = settings, grace_s
        self._listen, self._admin = listen, admin
        self._told = False
        self._also: list[Callable[[], Iterable[Metric]]] = [process_metrics, self._lost]
        self._wiring = Wiring(count)
        self.places = [
            Place(
                partial(self._order, number),
                self.answer,
                self._wiring.wires(number - 1).all,
                partial(self._gone, number),
                number=number,
                timeouts=timeouts,
                restart_delay_s=restart_delay_s,
            )
            for number in range(1, count + 1)
        ]

    async def run(self, started: Callable[[], None]) -> int:
        """Serve until told to stop, or until no process could begin to; return the exit code.

        `started` is called once each process serves, or has ended before that, which is tried
        again.
        """
        runs = [asyncio.create_task(place.run()) for place in self.places]
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
            self._wiring.close()
        return 0 if all(ended) and not failed else 1

    def also(self, more: Callable[[], Iterable[Metric]]) -> None:
        """Include these metrics in every scrape."""
        self._also.append(more)

    def stop(self) -> None:
        """Begin the orderly shutdown; called again, end at once."""
        now, self._told = self._told, True
        for place in self.places:
            place.stop(now=now)
        ending = self._settings.shutdown
        grace = self._grace_s + (0.0 if now else ending.delay + ending.drain)
        asyncio.get_running_loop().call_later(grace, self._kill)

    async def change(self, settings: Settings) -> None:
        """Apply other settings in all processes. Raises CannotBuild; then nothing has changed."""
        check_multiprocess(settings)
        before, self._settings = self._settings, settings
        sealed = seal(settings)
        # Those that serve come first: one that starts may hang, and judges if nobody else answers.
        silent, others = list[Place](), sorted(self.places, key=lambda place: not place.serves)
        try:
            while others and not await others[0].change(sealed):  # who answers judges for all
                silent.append(others.pop(0))
        except Refusal as refusal:
            self._settings = before
            for place in silent:
                place.tell("settings", seal(before))
            raise CannotBuild(str(refusal)) from None
        pending = [place.change(sealed) for place in others[1:] if place.serves]
        for place in others[1:]:
            if not place.serves:
                place.tell("settings", sealed)
        outcomes = await asyncio.gather(*pending, return_exceptions=True)
        for problem in outcomes:
            if isinstance(problem, BaseException):
                log.error("one process has not changed its settings: %s", problem)
        if settings.logs != before.logs:
            logs.set_up(settings.logs.level, settings.logs.format)

    async def _all_tried(self, runs: Sequence[asyncio.Task[bool]]) -> bool:
        """Wait until all processes serve or have ended, or are told to stop.

        Return whether any has served.
        """
        tried = asyncio.create_task(self._tried())
        await asyncio.wait({tried, *runs}, return_when=asyncio.FIRST_COMPLETED)
        tried.cancel()
        return any(place.ready.is_set() for place in self.places)

    async def _tried(self) -> None:
        for place in self.places:
            await place.tried.wait()

    def _order(self, number: int) -> Order:
        wires = self._wiring.wires(number - 1)
        return Order(number, seal(self._settings), self._listen, self._admin, wires)

    def _gone(self, number: int, pid: int) -> None:
        for place in self.places:
            place.tell("gone", msgspec.msgpack.encode((number - 1, pid)))

    async def answer(self, what: str, _: bytes) -> bytes:
        """Answer a process that asks for something merged from all processes. Raises Refusal."""
        if what == "metrics":
            replies = await asyncio.gather(*(place.metrics() for place in self.places))
            own = families(metric for more in self._also for metric in more())
            return text(merged([*replies, own]))
        if (merge := _MERGES.get(what)) is not None:
            answers = await asyncio.gather(*(place.ask(what) for place in self.places))
            return merge(answer for answer in answers if answer is not None)
        raise Refusal(f"nobody knows {what}")

    def _lost(self) -> Iterator[Metric]:
        yield CounterMetricFamily(
            "warmroute_processes_lost",
            "Processes that ended by themselves, or were killed as they hung.",
            sum(place.lost for place in self.places),
        )

    def _kill(self) -> None:
        for place in self.places:
            place.kill()
