"""The official client, synchronous and asynchronous, behind one interface.

Calls are named by their path on the client: `chat.completions.create`.
"""

import asyncio
from collections.abc import Callable
from operator import attrgetter
from types import TracebackType
from typing import Any, NamedTuple, Self

import openai


class Whole(NamedTuple):
    """A response read through `with_streaming_response`, undecoded."""

    status: int
    headers: dict[str, str]
    body: bytes


def options(url: str, **more: Any) -> dict[str, Any]:
    """Return options of a client that uses the router; it does not retry unless a test says so."""
    return {"base_url": f"{url}/v1", "api_key": "sk-test", "max_retries": 0, **more}


def wrapped(name: str, wrapper: str) -> str:
    """Return the name of a call via `with_raw_response` or `with_streaming_response`."""
    place, _, method = name.rpartition(".")
    return f"{place}.{wrapper}.{method}"


class SyncCaller:
    """`openai.OpenAI`."""

    def __init__(self, url: str, **more: Any) -> None:
        self.http = openai.DefaultHttpxClient()
        self.client: Any = openai.OpenAI(**options(url, http_client=self.http, **more))

    def call(self, name: str, **arguments: Any) -> Any:
        """Return the result of one call."""
        return attrgetter(name)(self.client)(**arguments)

    def events(self, name: str, **arguments: Any) -> list[Any]:
        """Return everything that a call's stream, helper or pages yield."""
        made = self.call(name, **arguments)
        if hasattr(made, "__enter__"):
            with made as stream:
                return list(stream)
        return list(made)  # pages

    def each(self, name: str, use: Callable[[Any], object], **arguments: Any) -> None:
        """Pass every event of a stream to `use` as it arrives."""
        with self.call(name, **arguments) as stream:
            for event in stream:
                use(event)

    def raw_events(self, name: str, **arguments: Any) -> tuple[Any, list[Any]]:
        """Return a raw response and its stream's events; `name` without `with_raw_response`."""
        raw = self.call(wrapped(name, "with_raw_response"), **arguments)
        with raw.parse() as stream:
            return raw, list(stream)

    def whole(self, name: str, **arguments: Any) -> Whole:
        """Return the bytes of a response; `name` without `with_streaming_response`."""
        with self.call(wrapped(name, "with_streaming_response"), **arguments) as reply:
            body = b"".join(reply.iter_bytes())
            return Whole(reply.status_code, dict(reply.headers), body)

    def hook(self, when: str, use: Callable[[Any], None]) -> None:
        """Pass every `request` before it is sent, or the head of every `response`, to `use`."""
        self.http.event_hooks = {when: [use]}

    def close(self) -> None:
        """Close every connection."""
        self.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class AsyncCaller(SyncCaller):
    """`openai.AsyncOpenAI`, with an event loop of its own."""

    def __init__(self, url: str, **more: Any) -> None:
        self.runner = asyncio.Runner()
        self.hooked = openai.DefaultAsyncHttpxClient()
        self.client = openai.AsyncOpenAI(**options(url, http_client=self.hooked, **more))

    def call(self, name: str, **arguments: Any) -> Any:
        return self.runner.run(self.made(name, **arguments))

    async def made(self, name: str, **arguments: Any) -> Any:
        """Return what a call gives: a result, a stream, or pages that are still to be read."""
        made = attrgetter(name)(self.client)(**arguments)
        return await made if hasattr(made, "__await__") else made

    def events(self, name: str, **arguments: Any) -> list[Any]:
        async def read() -> list[Any]:
            made = await self.made(name, **arguments)
            if hasattr(made, "__aenter__"):
                async with made as stream:
                    return [event async for event in stream]
            return [item async for item in made]  # pages

        return self.runner.run(read())

    def each(self, name: str, use: Callable[[Any], object], **arguments: Any) -> None:
        self.runner.run(self.read(name, use, **arguments))

    async def read(self, name: str, use: Callable[[Any], object], **arguments: Any) -> None:
        """Do the same as `each`, for callers already on the loop."""
        async with await self.made(name, **arguments) as stream:
            async for event in stream:
                use(event)

    def raw_events(self, name: str, **arguments: Any) -> tuple[Any, list[Any]]:
        async def read() -> tuple[Any, list[Any]]:
            raw = await self.made(wrapped(name, "with_raw_response"), **arguments)
            async with raw.parse() as stream:
                return raw, [event async for event in stream]

        return self.runner.run(read())

    def whole(self, name: str, **arguments: Any) -> Whole:
        async def read() -> Whole:
            method = attrgetter(wrapped(name, "with_streaming_response"))(self.client)
            async with method(**arguments) as reply:
                body = b"".join([piece async for piece in reply.iter_bytes()])
                return Whole(reply.status_code, dict(reply.headers), body)

        return self.runner.run(read())

    def hook(self, when: str, use: Callable[[Any], None]) -> None:
        async def used(shown: Any) -> None:
            use(shown)

        self.hooked.event_hooks = {when: [used]}

    def close(self) -> None:
        self.runner.run(self.client.close())
        self.runner.close()


CALLERS: dict[str, type[SyncCaller]] = {"sync": SyncCaller, "async": AsyncCaller}
