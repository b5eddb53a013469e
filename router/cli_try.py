"""Commands to try a router with: simulated workers, recorded traffic, both together."""

from pathlib import Path
from typing import Annotated

import typer
import uvloop

from router import demo, logs, server
from router.cli_terminal import address_of, err, fail, out
from router.replay import ReplayError, replay_trace
from router.replay_plan import Endpoint
from router.replay_report import to_json
from router.replay_tables import tables
from router.settings import LogSettings
from simulator.fleet import Fleet, FleetSettings, run_fleet
from simulator.profiles import PROFILES
from simulator.wire import Encoding


def run_demo(
    once: Annotated[bool, typer.Option("--once", help="End after the comparison.")] = False,
    listen: Annotated[
        str, typer.Option(help="HOST:PORT of the router that stays.")
    ] = "127.0.0.1:8080",
    seed: Annotated[int, typer.Option(help="Another seed is another workload.")] = 1,
) -> None:
    """Route real traffic over a simulated fleet, by round robin and by prefix, and compare."""
    options = demo.DemoOptions(listen=address_of(listen), once=once, seed=seed)
    try:
        code = uvloop.run(demo.run(options, out, err))
    except (demo.DemoError, server.PortTaken, ReplayError) as error:
        raise fail(str(error)) from None
    raise typer.Exit(code)


def replay(
    *,
    trace: Annotated[Path, typer.Argument(help="Mooncake format, .jsonl or .jsonl.zst.")],
    url: Annotated[str, typer.Option(help="The front door.")] = "http://127.0.0.1:8080",
    rate: Annotated[float, typer.Option(help="Multiplies the trace's arrival rate.")] = 1.0,
    speed: Annotated[
        float, typer.Option(help="The fleet is simulated, this much faster than the clock.")
    ] = 1.0,
    limit: Annotated[int | None, typer.Option(help="Only the first N requests.")] = None,
    endpoint: Annotated[Endpoint, typer.Option(help="Which API to use.")] = "chat",
    model: Annotated[
        str | None, typer.Option(help="Default: the first that /v1/models names.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Length of every answer. Default: the trace's.")
    ] = None,
    concurrency: Annotated[
        int, typer.Option(help="Requests in flight; more wait, and the report says so.")
    ] = 1000,
    as_recorded: Annotated[
        bool, typer.Option(help="Keep arrivals that share a time stamp together.")
    ] = False,
    api_key: Annotated[
        str | None, typer.Option(envvar="OPENAI_API_KEY", help="Sent as a bearer token.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Replay a trace through any OpenAI front door and report what it did."""
    try:
        report = replay_trace(
            trace,
            url=url,
            rate=rate,
            speed=speed,
            limit=limit,
            endpoint=endpoint,
            model=model,
            max_tokens=max_tokens,
            concurrency=concurrency,
            as_recorded=as_recorded,
            api_key=api_key,
        )
    except ReplayError as error:
        raise fail(str(error), 2) from None
    if as_json:
        print(to_json(report))
    else:
        out.print(tables(report))
    raise typer.Exit(1 if report.failed else 0)


def simulate(
    *,
    workers: Annotated[int, typer.Option(min=1, help="How many workers.")] = 8,
    port: Annotated[int, typer.Option(help="The first worker's port; 0: any.")] = 9001,
    profile: Annotated[str, typer.Option(help=f"One of {', '.join(PROFILES)}.")] = next(
        iter(PROFILES)
    ),
    model: Annotated[str, typer.Option(help="The model's name.")] = demo.MODEL,
    speed: Annotated[float, typer.Option(help="Simulated seconds a second.")] = 1.0,
    kv_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens each KV cache holds. Default: the profile's.")
    ] = None,
    host_tokens: Annotated[
        int, typer.Option(min=0, help="Tokens each host's memory keeps beyond the GPU.")
    ] = 0,
    store_tokens: Annotated[
        int, typer.Option(min=0, help="Tokens of a store that all workers share.")
    ] = 0,
    store_url: Annotated[
        str | None, typer.Option(help="The Redis that is that store. Default: in this process.")
    ] = None,
    max_queued: Annotated[
        int | None, typer.Option(min=0, help="Requests that may wait at a worker; more get 503.")
    ] = None,
    kv_port: Annotated[int, typer.Option(help="The first port of KV events; 0: any.")] = 0,
    kv_encoding: Annotated[
        Encoding, typer.Option(help="KV events as vLLM encodes them since 0.24, or before.")
    ] = "map",
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="Folder of the model whose tokenizer and chat template they have."),
    ] = None,
) -> None:
    """Run simulated vLLM workers, to put a router in front of."""

    def announce(fleet: Fleet) -> None:
        err.print("URL, KV events and their replay of each worker:")
        for worker in fleet.workers:
            print(worker.url, worker.kv_events, worker.kv_replay, flush=True)

    logs.set_up(LogSettings(level="warning"))
    try:
        settings = FleetSettings(
            workers=workers,
            port=port,
            profile=profile,
            models=(model,),
            speed=speed,
            kv_tokens=kv_tokens,
            host_tokens=host_tokens,
            store_tokens=store_tokens,
            store_url=store_url,
            max_queued=max_queued,
            kv_port=kv_port,
            kv_encoding=kv_encoding,
            tokenizer=tokenizer,
        )
        run_fleet(settings, announce)
    except OSError as error:
        raise fail(str(error)) from None
    except (ValueError, OverflowError) as error:
        raise fail(str(error), 2) from None
