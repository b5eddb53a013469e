"""One process tells the others what it sends, and hears what they send (`mirror.py`).

Dynamo's routers do this through a broker and call it replica sync. Here it costs one datagram per
process for everything that happened within `FLUSH_S`, and no request waits for it. A process that
is silent for `SILENT_S` while it has requests in flight is taken to hang: its bookings no longer
count, until it writes again and has told them all once more.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from itertools import count
from os import getpid
from time import monotonic

import msgspec
from msgspec.structs import replace

from router.fleet.fleet import Fleet
from router.fleet.pool import Pool
from router.replicas.messages import (
    Batch,
    Began,
    Booked,
    Ended,
    GiveWay,
    News,
    Resync,
    letters,
    size,
)
from router.replicas.messages import decode as opened
from router.replicas.messages import encode as sealed
from router.replicas.mirror import Mirror
from router.replicas.sockets import (
    MAX_DATAGRAM_BYTES,
    MAX_WAITING_BYTES,
    Inbox,
    Line,
    Outbox,
    Wires,
)
from router.responses.messages import OwnerQuery, ResponseOwner
from router.responses.owners import Responses
from strategies.api import Candidate, Outcome, Prompt
from strategies.cost.load import Booking
from strategies.prefix.block_keys import TEXT_ENDS

log = logging.getLogger("warmroute.processes")

#: Seconds that news is collected before it is sent: short compared with any prefill that matters.
FLUSH_S = 0.002
#: Seconds until a process that did not read is tried again.
RETRY_INTERVAL_S = 0.05
#: Seconds between heartbeats of a process with requests in flight, and seconds without any until
#: its bookings no longer count.
BEAT_S, SILENT_S = 1.0, 5.0
#: A letter is closed when it has this many bytes; with its last piece of news it may exceed that,
#: but not `MAX_DATAGRAM_BYTES`.
LETTER_BYTES = MAX_DATAGRAM_BYTES // 4
#: Letters that are read in a row before the event loop gets to run.
_AT_ONCE = 32


class Sharing:
    """One process's side of the exchange: `Peers` of the pools. `place` is counted from 0."""

    def __init__(
        self,
        wires: Wires,
        place: int,
        fleet: Fleet,
        freed: Callable[[], None],
        gives_way: Callable[[Booking], object],
        *,
        responses: Responses | None = None,
        beat_s: float = BEAT_S,
        silent_s: float = SILENT_S,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
    ) -> None:
        """`freed` is called when a prefill or an answer has ended in another process.

        `gives_way` takes a request of this process back from its worker, if it is not too late.
        `responses` is told of each response that another process has learned of.
        """
        self.mirror = Mirror(fleet)
        self._freed, self._gives_way, self._responses = freed, gives_way, responses
        self._beat_s, self._silent_s = beat_s, silent_s
        self._got_on = False
        """Whether something has ended since `freed` was last called."""
        self._place, self._pid = place, getpid()
        self._heard: dict[int, tuple[int, float]] = {}
        """By place: the pid of the process heard there last, and when."""
        self._silent: set[int] = set()
        """Places of processes that hang, whose bookings do not count."""
        self._inbox = Inbox(socket.socket(fileno=wires.inbox))
        self._outboxes = {
            number: Outbox(socket.socket(fileno=end), max_waiting_bytes)
            for number, end in enumerate(wires.outboxes)
        }
        self._outboxes.pop(place).close()
        self._numbers = count(1)
        self._open: dict[int, tuple[Booked, Booking | None]] = {}
        self._begun: set[int] = set()
        """Numbers of the open requests whose prompts are computed."""
        self._news: list[News] = []
        self._bytes = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def begin(self) -> None:
        """Start to listen to the others, and ask them for what they have in flight."""
        self._loop = asyncio.get_running_loop()
        self._inbox.clear()  # this was meant for the previous process at this place
        self._inbox.begin(self._hear)
        for outbox in self._outboxes.values():
            outbox.write(self._letter(Resync(asks=True)))
        self._flush()
        self._beat()

    def close(self) -> None:
        """Send what is left, and stop listening."""
        self._flush()
        self._loop = None
        for timer in self._timers.values():
            timer.cancel()
        self._inbox.close()
        for outbox in self._outboxes.values():
            outbox.close()

    def gone(self, place: int, pid: int) -> None:
        """Forget the process at `place`, which has ended, unless a new one has already written."""
        if self._loop is None:
            return
        while self._read():  # what it wrote before it ended
            pass
        if place in self._heard and self._heard[place][0] != pid:
            return
        self.mirror.gone(place, monotonic())
        self._outboxes[place].drop(Line.ABSENT)
        self._freed()

    def anew(self) -> None:
        """Exchange everything again after the fleet has changed.

        News about workers that only some of the processes had at the time was ignored.
        """
        for outbox in self._outboxes.values():
            if outbox.line is Line.OPEN:
                self._open_line(outbox, asks=True)

    # What this process sends.

    def booked(
        self,
        pool: Pool,
        prompt: Prompt,
        choice: Candidate,
        now: float,
        booking: Booking | None = None,
    ) -> int:
        """As `Peers.booked`."""
        number, loading = next(self._numbers), choice.loading
        heard = pool.capabilities.hears_others and prompt.ends is TEXT_ENDS
        # The conversions are for third-party strategies, which may use other number types.
        news = Booked(
            number,
            now,
            pool.name,
            choice.worker.name,
            prompt.tokens,
            prompt.answer_tokens,
            prompt.stream,
            float(choice.cost.prefill),
            int(choice.held_tokens),
            int(loading.l1),
            int(loading.l2),
            prompt.unit_tokens,
            prompt.keys if heard else (),
            prompt.resumed,
            None if booking is None else booking.since,
        )
        self._open[number] = news, booking
        self._tell(news)
        return number

    def began(self, number: int, now: float) -> None:
        """As `Peers.began`."""
        self._begun.add(number)
        self._tell(Began(number, now))

    def ended(self, number: int, outcome: Outcome, now: float) -> None:
        """As `Peers.ended`."""
        del self._open[number]
        self._begun.discard(number)
        cached, answer = outcome.cached_tokens, outcome.answer_tokens
        kept, length = outcome.kept_tokens, outcome.prompt_tokens
        self._tell(Ended(number, now, outcome.ok, outcome.began, cached, answer, kept, length))

    def give_way(self, bookings: Sequence[Booking], first: int) -> None:
        """Ask the processes that sent these requests to take them back, each once.

        They count until their processes tell that they have done so: it may be too late. A process
        that is not listening is not asked.
        """
        for booking in bookings:
            sent = self.mirror.of(booking)
            if sent is None:
                continue
            place, number = sent
            outbox = self._outboxes[place]
            if outbox.line is Line.OPEN:
                booking.since = None
                self._flush()  # so that it knows of the other request
                outbox.write(self._letter(GiveWay(number, first)))
                self._follow_up(outbox)

    def at_once(self, news: ResponseOwner | OwnerQuery) -> None:
        """Tell or ask of a response: its client may go on from it at another process."""
        self._tell(news)
        self._flush()

    def catch_up(self) -> None:
        """Read everything that the others have written."""
        if self._loop is not None:
            while self._read():
                pass
            self._said()

    def _tell(self, news: News) -> None:
        if self._loop is None:
            return
        self._news.append(news)
        self._bytes += size(news)
        if self._bytes >= LETTER_BYTES:
            self._flush()
        elif "flush" not in self._timers:
            self._timers["flush"] = self._loop.call_later(FLUSH_S, self._flush)

    def _flush(self) -> None:
        """Write all collected news, and whatever could not be written before."""
        if (timer := self._timers.pop("flush", None)) is not None:
            timer.cancel()
        news, self._news, self._bytes = self._news, [], 0
        letter = sealed(Batch(self._place, self._pid, news)) if news else b""
        for outbox in self._outboxes.values():
            if letter and outbox.line is Line.OPEN:
                outbox.write(letter)
            else:
                outbox.push()
            self._follow_up(outbox)

    def _follow_up(self, outbox: Outbox) -> None:
        """Retry soon what could not be written, even if there is no further news."""
        if outbox.behind and "again" not in self._timers and self._loop is not None:
            self._timers["again"] = self._loop.call_later(RETRY_INTERVAL_S, self._retry)

    def _retry(self) -> None:
        """Check whether processes that did not read do so again."""
        del self._timers["again"]
        for outbox in self._outboxes.values():
            if outbox.line is Line.LOST and outbox.reads(self._letter(Resync(asks=False))):
                self._open_line(outbox)
        self._flush()

    def _open_line(self, outbox: Outbox, *, asks: bool = False) -> None:
        """Tell a process everything in flight now, and from then on all news."""
        self._flush()  # first, because collected news is already part of what is in flight
        now = monotonic()
        under_way: list[News] = [Resync(asks)]
        for number in self._open:
            under_way += self._state(number, now)
        outbox.begin(letters(self._place, self._pid, under_way, LETTER_BYTES))
        self._follow_up(outbox)

    def _state(self, number: int, now: float) -> list[News]:
        """Return what there is to be told of a request that is under way."""
        news, booking = self._open[number]
        if booking is not None:
            news = replace(news, since=booking.since)  # it may be too late by now
        return [news, Began(number, now)] if number in self._begun else [news]

    def _letter(self, news: News) -> bytes:
        return sealed(Batch(self._place, self._pid, [news]))

    def _beat(self) -> None:
        """Send a heartbeat, and check those of the others."""
        self._hear()  # first read what arrived while this process was busy
        if self._loop is None:
            return
        now = monotonic()
        for place, (_, heard) in self._heard.items():
            if now - heard > self._silent_s and self.mirror.has(place):
                self.mirror.gone(place, now)
                self._silent.add(place)
        if self._open:
            sign = sealed(Batch(self._place, self._pid, []))
            for outbox in self._outboxes.values():
                if outbox.line is Line.OPEN and not outbox.behind:
                    outbox.write(sign)
                    self._follow_up(outbox)
        self._timers["beat"] = self._loop.call_later(self._beat_s, self._beat)

    # What the other processes write.

    def _hear(self) -> None:
        for _ in range(_AT_ONCE):
            if not self._read():
                break
        self._said()

    def _said(self) -> None:
        if self._got_on:
            self._got_on = False
            self._freed()

    def _read(self) -> bool:
        """Read and apply one letter; False if there is none."""
        data = self._inbox.read()
        if not data:
            return False
        try:
            letter, now = opened(data), monotonic()
        except msgspec.DecodeError as error:  # from another release, installed meanwhile
            log.error("what another process tells cannot be read: %s", error)
            return True
        place, outbox = letter.place, self._outboxes[letter.place]
        self._heard[place] = letter.pid, now
        for news in letter.news:
            self._take(place, news, now)
        if place in self._silent:  # its bookings were dropped: ask for all of them
            self._silent.discard(place)
            self._open_line(outbox, asks=True)
        return True

    def _take(self, place: int, news: News, now: float) -> None:
        """Apply one piece of news from the process at `place`."""
        self.mirror.take(place, news, now)
        if isinstance(news, GiveWay):
            self._take_back(place, news, now)
        elif isinstance(news, Resync):
            self._silent.discard(place)
            if news.asks or self._outboxes[place].line is Line.ABSENT:
                self._open_line(self._outboxes[place])
        elif isinstance(news, ResponseOwner | OwnerQuery):
            self._about_responses(place, news)
        elif not isinstance(news, Booked):
            self._got_on = True

    def _about_responses(self, place: int, news: ResponseOwner | OwnerQuery) -> None:
        if self._responses is None:
            return
        if isinstance(news, ResponseOwner):
            self._responses.hear(news)
            return
        known, outbox = self._responses.known(news.key), self._outboxes[place]
        if known is not None and outbox.line is Line.OPEN:
            outbox.write(self._letter(known))
            self._follow_up(outbox)

    def _take_back(self, place: int, news: GiveWay, now: float) -> None:
        """Let a request of this process give way to one of another, if it still would."""
        _, booking = self._open.get(news.number, (None, None))
        if booking is None:
            return
        if self.mirror.goes_before(place, news.first, booking, now):
            self._gives_way(booking)
