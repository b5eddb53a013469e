"""The controller's HTTP API, in FastAPI: registers sources and answers queries.

`/register`, `/unregister`, `/query` and `/query_by_hash` follow Mooncake's indexer
(docs/source/design/conductor/indexer-api-design.md in kvcache-ai/Mooncake) as far as possible: one
controller serves one fleet, so `tenant_id` is only echoed.
"""

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from fastapi.security import HTTPBearer

from controller.events.decode import MAX_PAYLOAD_BYTES
from controller.events.source import EventSource
from controller.index.snapshot import (
    MAX_SNAPSHOT_BYTES,
    BadSnapshot,
    copy_index,
    decode_snapshot,
    encode_snapshot,
)
from controller.kv_memory import KvMemory
from controller.service.middleware import AccessMiddleware, CountingMiddleware, RequestCounts
from controller.service.models import (
    BINARY,
    MSGPACK,
    TAKES_MSGPACK,
    EngineRegistration,
    HeldQuery,
    InstanceId,
    KeyQuery,
    PromptQuery,
    Rank,
    StreamState,
    TokenQuery,
    refusals,
)
from strategies.api import Prompt
from strategies.prefix.block_keys import even_chain, even_root

#: Largest query in bytes; a token takes up to 12.
MAX_QUERY_BYTES = 48 << 20
#: Most engines that can be registered.
MAX_ENGINES = 4096
Follow = Callable[[EventSource, str | None, str | None], Awaitable[None]]
Leave = Callable[[EventSource], Awaitable[None]]
#: Returns the body of `/metrics` and its content type.
Series = Callable[[], tuple[bytes, str]]


def create_app(
    memory: KvMemory,
    follow: Follow,
    leave: Leave,
    keys: Mapping[str, str],
    *,
    requests: RequestCounts | None = None,
    series: Series | None = None,
    max_engines: int = MAX_ENGINES,
    max_query_bytes: int = MAX_QUERY_BYTES,
) -> FastAPI:
    """Create the app.

    `follow` and `leave` start and end a subscription, and `keys` are the valid API keys. Requests
    are counted in `requests`; `series` returns the Prometheus metrics.
    """
    app = FastAPI(title="Warmroute controller", docs_url=None, redoc_url=None)
    inner = APIRouter(
        dependencies=[Depends(HTTPBearer(auto_error=False))] if keys else [],
        responses=refusals(401) if keys else {},
    )
    app.add_middleware(
        AccessMiddleware, keys=keys, limits={"/restore": MAX_SNAPSHOT_BYTES}, limit=max_query_bytes
    )
    app.add_exception_handler(RequestValidationError, _refuse)
    _add_health(app)
    _add_sources(inner, memory, follow, leave, max_engines)
    _add_queries(inner, memory)
    _add_snapshots(inner, memory)
    if series is not None:
        _add_metrics(inner, series)
    app.include_router(inner)
    paths = [getattr(route, "path", "") for route in (*app.routes, *inner.routes)]
    app.add_middleware(CountingMiddleware, paths=paths, requests=requests or RequestCounts())
    return app


async def _refuse(_: Request, error: Exception) -> Response:
    """Say which field was wrong and why, but not its value: it may be a prompt, or not JSON."""
    assert isinstance(error, RequestValidationError)  # noqa: S101 - registered for this type only
    errors = error.errors()[:10]
    return JSONResponse(
        {"detail": [{name: entry[name] for name in ("type", "loc", "msg")} for entry in errors]},
        422,
    )


def _add_health(app: FastAPI) -> None:
    @app.get("/health/live")
    async def live() -> dict[str, str]:
        """Answer as long as the process does; without a key."""
        return {"status": "live"}


def _add_sources(
    app: APIRouter, memory: KvMemory, follow: Follow, leave: Leave, max_engines: int
) -> None:
    @app.get("/streams")
    async def streams() -> list[StreamState]:
        """List every stream: how far it is, and what is wrong with it."""
        return [_state(source, memory) for source in memory.all_sources()]

    @app.post("/register", responses=refusals(409, 413, 429))
    async def register(publisher: EngineRegistration) -> dict[str, str]:
        """Listen to an engine, or be ready to have its events pushed."""
        if _registered(memory, publisher) is not None:
            raise HTTPException(409, f"{publisher.instance_id} is registered already")
        if sum(map(len, memory.sources.values())) >= max_engines:
            raise HTTPException(429, f"{max_engines} engines are registered already")
        endpoint, replay = publisher.endpoint or None, publisher.replay_endpoint or None
        replays = endpoint is not None and replay is not None
        source = memory.join(publisher.instance_id, publisher.dp_rank, replays=replays)
        await follow(source, endpoint, replay)
        return {"status": "registered successfully", "instance_id": publisher.instance_id}

    @app.post("/unregister", responses=refusals(404, 413))
    async def unregister(publisher: EngineRegistration) -> dict[str, Any]:
        """Listen to it no more, and forget what it held."""
        source = _require(memory, publisher)
        await leave(source)
        memory.leave(source)
        name = f"{publisher.instance_id}|{publisher.tenant_id}|{publisher.dp_rank}"
        return {"status": "unregistered successfully", "removed_instances": [name]}

    @app.post("/events/{instance_id}", responses=refusals(404, 413), openapi_extra=TAKES_MSGPACK)
    async def push(
        instance_id: Annotated[InstanceId, Path()],
        request: Request,
        dp_rank: Annotated[Rank, Query()] = 0,
    ) -> dict[str, int]:
        """Take one msgpack batch, as engines publish them, of an engine without ZeroMQ."""
        body = await _body(request, MAX_PAYLOAD_BYTES)
        source = _require(memory, EngineRegistration(instance_id=instance_id, dp_rank=dp_rank))
        before, refused = source.events, source.refused.total()
        source.push(body, monotonic())
        return {"events": source.events - before, "refused": source.refused.total() - refused}


def _add_queries(app: APIRouter, memory: KvMemory) -> None:
    @app.post("/query", responses=refusals(413))
    async def query(question: TokenQuery) -> dict[str, dict[str, Any]]:
        """Say who holds how many of a prompt's first tokens, by instance and medium."""
        root = even_root(question.lora_name or "", question.cache_salt or "")
        ids = array("I", question.token_ids)
        return _answer(memory, question, even_chain(root, ids.tobytes(), question.block_size))

    @app.post("/query_by_hash", responses=refusals(413))
    async def query_by_hash(question: KeyQuery) -> dict[str, dict[str, Any]]:
        """Say the same of a prompt whose keys are known."""
        return _answer(memory, question, question.seq_hashes)

    @app.post("/held", include_in_schema=False)
    async def held(request: Request) -> Response:
        """Answer a router, in msgpack: tokens by tier and the doubt, by worker; sizes of blocks;
        events that were heard, by worker."""
        try:
            question = msgspec.msgpack.decode(
                await _body(request, MAX_PAYLOAD_BYTES), type=HeldQuery
            )
        except msgspec.MsgspecError as error:
            raise HTTPException(400, f"not a question: {error}") from None
        prompt = Prompt(model="", tokens=question.tokens, blocks=question.keys)
        held_tokens = memory.held(prompt, question.workers, l1=question.l1)
        doubts = {worker: memory.doubt(worker) for worker in question.workers}
        tokens = {name: list(tiers) for name, tiers in held_tokens.items()}
        heard = {name: memory.heard(name) for name in question.workers if name in memory.sources}
        answer = [tokens, doubts, list(memory.sizes()), heard]
        return Response(msgspec.msgpack.encode(answer), media_type=MSGPACK)


def _add_metrics(app: APIRouter, series: Series) -> None:
    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Give Prometheus the streams, the index, and what was asked."""
        body, kind = series()
        return Response(body, headers={"content-type": kind})


def _add_snapshots(app: APIRouter, memory: KvMemory) -> None:
    making = asyncio.Lock()

    success: dict[int | str, dict[str, Any]] = {200: {"content": {MSGPACK: BINARY}}}

    @app.get("/snapshot", response_class=Response, responses=success | refusals(429))
    async def snapshot() -> Response:
        """Give the whole index, and how far each stream is, for `/restore`."""
        _one_at_a_time(making)
        async with making:
            copied = copy_index(memory.index.holdings, memory.where())
            return Response(await asyncio.to_thread(encode_snapshot, copied), media_type=MSGPACK)

    @app.post("/restore", responses=refusals(400, 409, 413, 429), openapi_extra=TAKES_MSGPACK)
    async def put_back(request: Request) -> dict[str, int]:
        """Take over a snapshot, before anything else was heard; streams go on where it ends."""
        _one_at_a_time(making)
        async with making:
            body = await _body(request, MAX_SNAPSHOT_BYTES)
            try:
                holdings, marks = await asyncio.to_thread(decode_snapshot, body)
            except BadSnapshot as error:
                raise HTTPException(400, str(error)) from None
            if len(memory.index):  # checked this late, as engines send events meanwhile
                raise HTTPException(
                    409, "there are blocks already: restore into a fresh controller"
                )
            memory.adopt(holdings, marks)
            return {"blocks": len(memory.index)}


def _one_at_a_time(making: asyncio.Lock) -> None:
    """Refuse a second snapshot at once, as each is as large as the index. Raises HTTPException."""
    if making.locked():
        raise HTTPException(429, "another snapshot is under way; please try again")


async def _body(request: Request, limit: int) -> bytes:
    body = await request.body()
    if len(body) > limit:
        raise HTTPException(413, f"more than {limit} bytes")
    return body


def _registered(memory: KvMemory, publisher: EngineRegistration) -> EventSource | None:
    sources = memory.sources.get(publisher.instance_id, ())
    return next((source for source in sources if source.rank == publisher.dp_rank), None)


def _require(memory: KvMemory, publisher: EngineRegistration) -> EventSource:
    source = _registered(memory, publisher)
    if source is None:
        raise HTTPException(404, f"{publisher.instance_id} is not registered")
    return source


def _answer(memory: KvMemory, question: PromptQuery, keys: list[int]) -> dict[str, dict[str, Any]]:
    size = question.block_size
    prompt = Prompt(model="", tokens=len(keys) * size + 1, blocks={size: keys})
    wanted = [question.instance_id] if question.instance_id else list(memory.sources)
    answer = {}
    for worker in wanted:
        ranks = memory.ranks(prompt, worker)
        if ranks:
            best = max(ranks.values(), key=lambda held: held.total)
            answer[worker] = {
                "longest_matched": best.total,
                "GPU": best.gpu,
                "CPU": best.gpu + best.l1 if best.l1 else 0,
                "DISK": best.total if best.l2 else 0,
                "DP": {str(rank): held.total for rank, held in ranks.items()},
            }
    return {question.tenant_id: answer}


def _state(source: EventSource, memory: KvMemory) -> StreamState:
    stream, last = source.stream, source.last_event
    return StreamState(
        instance_id=source.worker,
        dp_rank=source.rank,
        connected=source.connected,
        state=stream.state.value,
        sequence=stream.applied,
        epoch=stream.epoch,
        doubt=memory.doubt(source.worker),
        seconds_since_event=None if last is None else monotonic() - last,
        seconds_behind=source.lag.seconds,
        events=source.events,
        counts=dict(stream.counts),
        refused=dict(source.refused),
    )
