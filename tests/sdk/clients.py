"""The official client, synchronous and asynchronous, behind one interface."""

import asyncio
from collections.abc import Awaitable, Callable
from operator import attrgetter
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

import openai


class Whole(NamedTuple):
    """A response read through `with_streaming_response`, undecoded."""

    status: int
    headers: dict[str, str]
    body: bytes


class Caller(Protocol):
    """One client. Calls are named by their path on the client: `chat.completions.create`."""

    client: Any

    def call(self, name: str, **arguments: Any) -> Any:
        """Return the result of one call."""

    def events(self, name: str, **arguments: Any) -> list[Any]:
        """Return everything that a call's stream, helper or pages yield."""

    def each(self, name: str, use: Callable[[Any], object], **arguments: Any) -> None:
        """Pass every event of a stream to `use` as it arrives."""

    def raw_events(self, name: str, **arguments: Any) -> tuple[Any, list[Any]]:
        """Return a raw response and its stream's events; `name` without `with_raw_response`."""

    def whole(self, name: str, **arguments: Any) -> Whole:
        """Return the bytes of a response; `name` without `with_streaming_response`."""

    def first(self, name: str, then: Callable[[], None], **arguments: Any) -> Any:
        """Return the first event; `then` is called while the stream is open, then it is closed."""

    def unread(self, name: str, **arguments: Any) -> None:
        """Leave a response before its body is read; `name` without `with_streaming_response`."""

    def before(self, use: Callable[[Any], None]) -> None:
        """Pass every request to `use` before it is sent."""

    def after(self, use: Callable[[Any], None]) -> None:
        """Pass the head of every response to `use`."""

    def close(self) -> None:
        """Close every connection."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


def options(url: str, **more: Any) -> dict[str, Any]:
    """Return options of a client that uses the router; it does not retry unless a test says so."""
    return {"base_url": f"{url}/v1", "api_key": "sk-test", "max_retries": 0, **more}


def wrapped(name: str, wrapper: str) -> str:
    """Return the name of a call via `with_raw_response` or `with_streaming_response`."""
    place, _, method = name.rpartition(".")
    return f"{place}.{wrapper}.{method}"


class _Closing:
    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class SyncCaller(_Closing):
    """`openai.OpenAI`."""

    def __init__(self, url: str, **more: Any) -> None:
        self.client: Any = openai.OpenAI(**options(url, **more))

    def call(self, name: str, **arguments: Any) -> Any:
        return attrgetter(name)(self.client)(**arguments)

    def events(self, name: str, **arguments: Any) -> list[Any]:
        made = self.call(name, **arguments)
        if hasattr(made, "__enter__"):
            with made as stream:
                return list(stream)
        return list(made)  # pages

    def each(self, name: str, use: Callable[[Any], object], **arguments: Any) -> None:
        with self.call(name, **arguments) as stream:
            for event in stream:
                use(event)

    def raw_events(self, name: str, **arguments: Any) -> tuple[Any, list[Any]]:
        raw = self.call(wrapped(name, "with_raw_response"), **arguments)
        with raw.parse() as stream:
            return raw, list(stream)

    def whole(self, name: str, **arguments: Any) -> Whole:
        with self.call(wrapped(name, "with_streaming_response"), **arguments) as reply:
            body = b"".join(reply.iter_bytes())
            return Whole(reply.status_code, dict(reply.headers), body)

    def first(self, name: str, then: Callable[[], None], **arguments: Any) -> Any:
        with self.call(name, **arguments) as stream:
            event = next(iter(stream))
            then()
        return event

    def unread(self, name: str, **arguments: Any) -> None:
        with self.call(wrapped(name, "with_streaming_response"), **arguments) as reply:
            assert reply.status_code == 200

    def before(self, use: Callable[[Any], None]) -> None:
        self.client._client.event_hooks = {"request": [use]}

    def after(self, use: Callable[[Any], None]) -> None:
        self.client._client.event_hooks = {"response": [use]}

    def close(self) -> None:
        self.client.close()


class AsyncCaller(_Closing):
    """`openai.AsyncOpenAI`, with an event loop of its own."""

    def __init__(self, url: str, **more: Any) -> None:
        self._runner = asyncio.Runner()
        self.run = self._runner.run
        self.client: Any = openai.AsyncOpenAI(**options(url, **more))

    def call(self, name: str, **arguments: Any) -> Any:
        return self.run(self._call(name, **arguments))

    async def _call(self, name: str, **arguments: Any) -> Any:
        made = attrgetter(name)(self.client)(**arguments)
        return await made if hasattr(made, "__await__") else made

    def events(self, name: str, **arguments: Any) -> list[Any]:
        async def read() -> list[Any]:
            made = await self._call(name, **arguments)
            if hasattr(made, "__aenter__"):
                async with made as stream:
                    return [event async for event in stream]
            return [item async for item in made]  # pages

        return self.run(read())

    def each(self, name: str, use: Callable[[Any], object], **arguments: Any) -> None:
        self.run(self.read(name, use, **arguments))

    async def read(self, name: str, use: Callable[[Any], object], **arguments: Any) -> None:
        """Do the same as `each`, for callers already on the loop."""
        async with await self._call(name, **arguments) as stream:
            async for event in stream:
                use(event)

    def raw_events(self, name: str, **arguments: Any) -> tuple[Any, list[Any]]:
        async def read() -> tuple[Any, list[Any]]:
            raw = await self._call(wrapped(name, "with_raw_response"), **arguments)
            async with raw.parse() as stream:
                return raw, [event async for event in stream]

        return self.run(read())

    def whole(self, name: str, **arguments: Any) -> Whole:
        async def read() -> Whole:
            method = attrgetter(wrapped(name, "with_streaming_response"))(self.client)
            async with method(**arguments) as reply:
                body = b"".join([piece async for piece in reply.iter_bytes()])
                return Whole(reply.status_code, dict(reply.headers), body)

        return self.run(read())

    def first(self, name: str, then: Callable[[], None], **arguments: Any) -> Any:
        async def read() -> Any:
            async with await self._call(name, **arguments) as stream:
                event = await anext(aiter(stream))
                await asyncio.to_thread(then)
            return event

        return self.run(read())

    def unread(self, name: str, **arguments: Any) -> None:
        async def leave() -> None:
            method = attrgetter(wrapped(name, "with_streaming_response"))(self.client)
            async with method(**arguments) as reply:
                assert reply.status_code == 200

        self.run(leave())

    def before(self, use: Callable[[Any], None]) -> None:
        self.client._client.event_hooks = {"request": [_awaitable(use)]}

    def after(self, use: Callable[[Any], None]) -> None:
        self.client._client.event_hooks = {"response": [_awaitable(use)]}

    def close(self) -> None:
        self.run(self.client.close())
        self._runner.close()


def _awaitable(use: Callable[[Any], None]) -> Callable[[Any], Awaitable[None]]:
    async def used(shown: Any) -> None:
        use(shown)

    return used


CALLERS: dict[str, type[SyncCaller] | type[AsyncCaller]] = {
    "sync": SyncCaller,
    "async": AsyncCaller,
}
