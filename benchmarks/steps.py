"""The cost of a request, step by step: `python -m benchmarks.steps`.

Runs each step of the request path by itself, with real bytes but without sockets, and shows the
fastest of many rounds in microseconds; no step waits, so that is CPU time. Sockets and event loop
come on top: two reads, two writes and a share of a poll. `benchmarks.overhead` measures the whole,
in comparison with other proxies.
"""

import asyncio
import timeit
from collections.abc import Callable
from dataclasses import dataclass, field

import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.harness.bodies import chat_bodies
from benchmarks.harness.load import HEADERS
from router.api.endpoints import ENDPOINTS
from router.api.request import parse
from router.fleet.pool import Pool
from router.fleet.worker import Worker
from router.http.exchange import AnswerSource, Exchange
from router.http.headers import upstream_head
from router.http.parser import RequestParser
from router.prompt.prompts import Prompts
from router.proxy.limits import Limits
from router.proxy.relay import Relay
from router.settings.server import LimitSettings
from router.upstream.connection import UpstreamConnection
from router.upstream.pool import Upstream
from router.upstream.timeouts import Patience
from router.upstream.usage import UsageTail
from strategies.api import Outcome
from strategies.registry import make

SIZES = (400, 8_700, 35_000, 261_000)
STRATEGIES = ("roundrobin", "prefixaware")
NEW = "a head never seen before: in addition"
CHAT = ENDPOINTS["/v1/chat/completions"]
_ANSWER = (
    b'{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"An answer."},"finish_reason":"stop"}],"usage":'
    b'{"prompt_tokens":100,"completion_tokens":8,"total_tokens":108}}'
)
_REPLY = (
    b"HTTP/1.1 200 OK\r\ndate: Sat, 21 Nov 2026 14:00:00 GMT\r\nserver: uvicorn\r\n"
    b"content-length: %d\r\ncontent-type: application/json\r\n\r\n%b" % (len(_ANSWER), _ANSWER)
)


@dataclass
class NullConnection:
    """A client connection that discards everything written to it."""

    stopping: bool = False
    exchanges: list[Exchange] = field(default_factory=list)

    def admit(self, exchange: Exchange) -> int:  # noqa: ARG002 - part of a protocol
        """Admit bodies of up to 1 GiB."""
        return 1 << 30

    def received(self, exchange: Exchange) -> None:
        """Remember the last exchange."""
        self.exchanges[:] = [exchange]

    def write(self, data: bytes) -> None:
        """Discard the data."""

    def finished(self, exchange: Exchange) -> None:
        """Do nothing."""

    def feed_from(self, source: AnswerSource | None) -> None:
        """Do nothing: the client is never slow."""

    def cut(self, *, framed: bool) -> None:
        """Do nothing."""


class _NullTransport(asyncio.Transport):
    def write(self, data: object) -> None:
        """Discard the data."""

    def abort(self) -> None:
        """Do nothing."""

    def get_write_buffer_size(self) -> int:
        """Return 0: nothing is ever buffered."""
        return 0


def main() -> None:
    """Measure and print a table for each strategy."""
    for strategy in STRATEGIES:
        columns = [steps(strategy, size) for size in SIZES]
        table = Table(title=f"CPU µs of each step, {strategy}")
        table.add_column("step")
        for size in SIZES:
            table.add_column(f"{size / 1000:g} kB", justify="right")
        sums = [sum(column.values()) - column[NEW] for column in columns]
        for name in columns[0]:
            if name == NEW:
                table.add_section()
                table.add_row("all of them", *(f"{microseconds:.1f}" for microseconds in sums))
            table.add_row(name, *(f"{column[name]:.1f}" for column in columns))
        Console().print(table)


def steps(strategy: str, size: int) -> dict[str, float]:
    """Return the microseconds of each step for prompts of one size."""
    line, body = NullConnection(), chat_bodies(size, 1, 1)[0]
    request = (HEADERS % (8080, len(body))).encode() + body
    again, new = _reading(line, request)
    return {
        "read a request like the one before it": again,
        **_deciding(_pool(strategy), body),
        **_answering(line, line.exchanges[0]),
        NEW: max(0.0, new - again),
    }


def _reading(line: NullConnection, request: bytes) -> tuple[float, float]:
    """Measure reading it after one with the same head, and after none."""
    limits = LimitSettings()
    fresh, again = RequestParser(line, limits), RequestParser(line, limits)
    again.feed(request)

    def first() -> None:
        fresh.follow(limits)
        fresh.feed(request)

    return _cpu(lambda: again.feed(request)), _cpu(first)


def _deciding(pool: Pool, body: bytes) -> dict[str, float]:
    limits, prompts = Limits(LimitSettings()), pool.prompts
    read = parse(CHAT, body, b"")
    read.model = "m"
    prompt = prompts.prompt(CHAT, read)
    choice = pool.strategy.rank(prompt, pool.workers, 1.0).candidates[0]
    outcome = Outcome(ok=True, first_byte_s=0.01, prompt_tokens=100, cached_tokens=64)
    load = choice.worker.load

    def book() -> None:
        load.release(pool.book(prompt, choice, 1.0), 2.0)
        pool.strategy.settled(prompt, choice, outcome, 2.0)

    return {
        "parse what routing needs": _cpu(
            lambda: limits.check(CHAT, parse(CHAT, body, b"", texts=prompts.keyed))
        ),
        "prompt: length and keys": _cpu(lambda: prompts.prompt(CHAT, read)),
        "rank two workers": _cpu(lambda: pool.strategy.rank(prompt, pool.workers, 1.0)),
        "book, place and settle": _cpu(book),
    }


def _answering(line: NullConnection, exchange: Exchange) -> dict[str, float]:
    loop = uvloop.new_event_loop()
    connection = UpstreamConnection(loop, Patience(1, 1, 1, 1))
    connection.connection_made(_NullTransport())

    def reply() -> None:
        connection.expect()
        connection.data_received(_REPLY)

    def relay() -> None:
        reply()
        Relay(CHAT, Exchange(line, exchange.head, keep=True)).begin(connection, b"")
        connection.release()

    def usage() -> None:
        tail = UsageTail()
        tail.add(_ANSWER)
        tail.read()

    answer = _cpu(reply)
    costs = {
        "write the head for the worker": _cpu(
            lambda: upstream_head(b"/v1/chat/completions", exchange, b"10.0.0.1:8000", None, 400)
        ),
        "read the worker's answer": answer,
        "write the answer for the client": max(0.0, _cpu(relay) - answer),
        "read its usage": _cpu(usage),
    }
    loop.close()
    return costs


def _pool(strategy: str) -> Pool:
    patience = Patience(1, 1, 1, 1)
    workers = []
    for number in range(2):
        upstream = Upstream("127.0.0.1", 1, tls=None, patience=patience)
        workers.append(Worker(f"w{number}", "http://127.0.0.1:1", upstream))
        workers[-1].kv_tokens = 400_000
    pool = Pool("p", ["*"], workers, make(strategy, {}))
    assert isinstance(pool.prompts, Prompts)  # noqa: S101 - narrows the type
    return pool


def _cpu(work: Callable[[], object]) -> float:
    """Return microseconds per call in the fastest of many rounds."""
    number = 200
    return min(timeit.repeat(work, number=number, repeat=15)) / number * 1e6


if __name__ == "__main__":
    main()
