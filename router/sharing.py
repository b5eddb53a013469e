"""One process tells the others what it sends, and hears what they send (`mirror.py`).

Dynamo's routers do so through a broker, and call it replica sync. Here it costs one datagram for
all that happened within `FLUSH_S`, and a request waits for none of it.
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from itertools import count
from os import getpid
from time import monotonic

from router.fleet import Fleet, Pool
from router.mirror import Mirror
from router.news import Anew, Began, Booked, Ended, Letter, News
from router.news import decode as opened
from router.news import encode as sealed
from router.wires import LARGEST, Inbox, Line, Outbox, Wires
from strategies.base import Candidate, Outcome, Prompt
from strategies.blocks import TEXT_ENDS

#: Seconds that news waits for more of it: a small part of the least prefill that matters.
FLUSH_S = 0.002
#: Seconds until a process that did not read is tried again.
AGAIN_S = 0.05
#: A letter is closed when it has so many bytes: what is in it last takes `LARGEST` at most.
LETTER_BYTES = LARGEST // 4
#: Bytes of a piece of news, at most, but for the names and keys in it; and of a key.
_LARGE, _SMALL, _KEY = 128, 32, 9
#: Letters that are read before anything else has its turn.
_AT_ONCE = 32


class Sharing:
    """One process's part. `place` is from 0."""

    def __init__(self, wires: Wires, place: int, fleet: Fleet, freed: Callable[[], None]) -> None:
        """`freed` is called when others have told that something has ended."""
        self.mirror = Mirror(fleet)
        self._freed = freed
        self._place, self._pid = place, getpid()
        self._pids: dict[int, int] = {}
        """Who told last, by place."""
        self._inbox = Inbox(socket.socket(fileno=wires.inbox))
        self._outboxes = {
            number: Outbox(socket.socket(fileno=end)) for number, end in enumerate(wires.outboxes)
        }
        self._outboxes.pop(place).close()
        self._numbers = count(1)
        self._open: dict[int, Booked] = {}
        self._begun: set[int] = set()
        """Those of them whose prompts are computed."""
        self._news: list[News] = []
        self._bytes = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._again: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Hear the others from now on, and ask them for what they have under way."""
        self._loop = asyncio.get_running_loop()
        self._inbox.begin(self._hear)
        asking = self._letter([Anew(asks=True)])
        for outbox in self._outboxes.values():
            outbox.write(asking)
        self._flush()

    def close(self) -> None:
        """Tell and hear nothing any more."""
        self._flush()
        if self._again is not None:
            self._again.cancel()
        self._loop, self._again = None, None
        self._inbox.close()
        for outbox in self._outboxes.values():
            outbox.close()

    def gone(self, place: int, pid: int) -> None:
        """That process there has ended; another one may have told something already."""
        while self._read():  # what it still told
            pass
        if self._pids.get(place, pid) != pid:
            return
        self.mirror.gone(place, monotonic())
        self._outboxes[place].drop(Line.ABSENT)

    # What attempts tell.

    def booked(self, pool: Pool, prompt: Prompt, choice: Candidate, now: float) -> int:
        """It is being sent; return the number by which to tell what comes of it."""
        number, loading = next(self._numbers), choice.loading
        heard = pool.hears and prompt.ends is TEXT_ENDS
        news = Booked(
            number,
            now,
            pool.name,
            choice.worker.name,
            prompt.tokens,
            prompt.answer_tokens,
            prompt.stream,
            choice.cost.prefill,
            choice.held_tokens,
            loading.l1,
            loading.l2,
            prompt.unit_tokens,
            prompt.keys if heard else (),
        )
        self._open[number] = news
        self._tell(news, _size(news))
        return number

    def began(self, number: int, now: float) -> None:
        """Its prompt is computed."""
        self._begun.add(number)
        self._tell(Began(number, now))

    def ended(self, number: int, outcome: Outcome, now: float) -> None:
        """It is over."""
        del self._open[number]
        self._begun.discard(number)
        cached, answer = outcome.cached_tokens, outcome.answer_tokens
        self._tell(Ended(number, now, outcome.ok, outcome.began, cached, answer))

    def _tell(self, news: News, size: int = _SMALL) -> None:
        if self._loop is None:
            return
        self._news.append(news)
        self._bytes += size
        if self._bytes >= LETTER_BYTES:
            self._flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(FLUSH_S, self._flush)

    def _flush(self) -> None:
        """Write what there is to tell, and again what could not be written."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        news, self._news, self._bytes = self._news, [], 0
        letter = self._letter(news) if news else b""
        behind = False
        for outbox in self._outboxes.values():
            if letter and outbox.line is Line.OPEN:
                outbox.write(letter)
            else:
                outbox.push()
            if outbox.line is Line.LOST:
                self._open_line(outbox)
            behind = behind or outbox.behind
        if behind and self._again is None and self._loop is not None:
            self._again = self._loop.call_later(AGAIN_S, self._retry)

    def _retry(self) -> None:
        self._again = None
        self._flush()

    def _open_line(self, outbox: Outbox) -> None:
        """It is told what is under way, and from now on what happens."""
        outbox.drop(Line.OPEN)
        outbox.write(self._letter([Anew(asks=False)]))
        some: list[News] = []
        size, now = 0, monotonic()
        for booked in self._open.values():
            some.append(booked)
            size += _size(booked)
            if booked.number in self._begun:
                some.append(Began(booked.number, now))
                size += _SMALL
            if size >= LETTER_BYTES:
                outbox.write(self._letter(some))
                some, size = [], 0
        if some:
            outbox.write(self._letter(some))

    def _letter(self, news: Sequence[News]) -> bytes:
        return sealed(Letter(self._place, self._pid, news))

    # What the others tell.

    def _hear(self) -> None:
        for _ in range(_AT_ONCE):
            if not self._read():
                break
        self._freed()

    def _read(self) -> bool:
        """Take one letter, if there is one."""
        data = self._inbox.read()
        if not data:
            return False
        letter, now = opened(data), monotonic()
        self._pids[letter.place] = letter.pid
        for news in letter.news:
            self.mirror.take(letter.place, news, now)
            if isinstance(news, Anew):
                self._answer(self._outboxes[letter.place], news)
        return True

    def _answer(self, outbox: Outbox, anew: Anew) -> None:
        if anew.asks or outbox.line is Line.ABSENT:
            self._flush()  # or those that are open would be told twice
            self._open_line(outbox)


def _size(booked: Booked) -> int:
    """Bytes that it takes, at most: no name has more than four a letter."""
    return _LARGE + 4 * (len(booked.pool) + len(booked.worker)) + _KEY * len(booked.keys)
