"""Base class of test servers that run in their own threads."""

import asyncio
import ssl
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


class Looped:
    """A server on a free port of 127.0.0.1, in its own thread."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.port = 0
        self._tls = tls
        self._ready = threading.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)
        self._thread.start()
        assert self._ready.wait(10)

    @property
    def url(self) -> str:
        """The server's URL."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def name(self) -> str:
        """The name that the router gives it by default."""
        return f"127.0.0.1:{self.port}"

    def do(self, what: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the server's thread and wait for its result."""
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(10)

    def stop(self) -> None:
        """Close everything and end the thread."""
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(10)
        assert not self._thread.is_alive()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._over.wait()
        await self.close()
        while self._tasks:
            told = set(self._tasks)
            for task in told:
                task.cancel()
            await asyncio.wait(told)
        await asyncio.sleep(0)  # let the last transports close

    async def close(self) -> None:
        """Stop accepting connections.

        The server is closed only after connections that are just being accepted are attached to
        it; otherwise they would belong to nobody (CPython's `Server._attach`).
        """
        for listening in self._server.sockets:
            self._loop.remove_reader(listening.fileno())
        for _ in range(3):
            await asyncio.sleep(0)
        self._server.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: writer.close())  # also if it never began

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                await self.converse(reader, writer)
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection; it is closed afterwards."""
        raise NotImplementedError
