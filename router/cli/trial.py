"""Commands for trying a router: simulated workers, recorded traffic, or both together."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console

from router.cli import demo
from router.cli.terminal import Ca, address_of, fail, key_of, trust_of, url_of
from router.http import server
from router.replay.plan import Endpoint, NoModel, ReplayError
from router.replay.report import tables, to_json
from router.replay.run import replay_trace
from router.runtime import logs
from simulator.engine.profiles import PROFILES
from simulator.fleet import SimulatedFleet, run_fleet
from simulator.kv.events import Encoding
from simulator.settings import FleetSettings

out = Console()
err = Console(stderr=True, highlight=False, soft_wrap=True)

#: The exit code of a command that Ctrl-C ended before it was done.
_INTERRUPTED = 130


def run_demo(
    once: Annotated[bool, typer.Option("--once", help="End after the comparison.")] = False,
    listen: Annotated[
        str, typer.Option(help="HOST:PORT of the prefixaware router.")
    ] = "127.0.0.1:8080",
    seed: Annotated[int, typer.Option(help="Seed of the generated workload.")] = 1,
) -> None:
    """Compare roundrobin and prefixaware on a simulated fleet, with real HTTP traffic."""
    options = demo.DemoOptions(listen=address_of(listen), once=once, seed=seed)
    try:
        code = uvloop.run(demo.run(options, out, err))
    except KeyboardInterrupt:
        raise fail("interrupted", _INTERRUPTED) from None
    except (demo.DemoError, server.PortTaken, ReplayError) as error:
        raise fail(str(error)) from None
    raise typer.Exit(code)


def replay(
    *,
    trace: Annotated[Path, typer.Argument(help="Mooncake format, .jsonl or .jsonl.zst.")],
    url: Annotated[str, typer.Option(help="Where to send the requests.")] = "http://127.0.0.1:8080",
    rate: Annotated[float, typer.Option(help="Multiplies the trace's arrival rate.")] = 1.0,
    speed: Annotated[
        float, typer.Option(help="How much faster than the clock the simulated fleet runs.")
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
        int, typer.Option(help="Most requests in flight; the others wait, and the report says so.")
    ] = 1000,
    as_recorded: Annotated[
        bool, typer.Option(help="Send requests with the same time stamp at once, not spread out.")
    ] = False,
    api_key: Annotated[
        str | None, typer.Option(envvar="OPENAI_API_KEY", help="Sent as a bearer token.")
    ] = None,
    ca: Ca = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Replay a trace through any OpenAI-compatible server and report latency and hits."""
    try:
        report = replay_trace(
            trace,
            url=url_of(url),
            rate=rate,
            speed=speed,
            limit=limit,
            endpoint=endpoint,
            model=model,
            max_tokens=max_tokens,
            concurrency=concurrency,
            as_recorded=as_recorded,
            api_key=key_of(api_key),
            trust=trust_of(ca, url),
        )
    except KeyboardInterrupt:
        raise fail("interrupted", _INTERRUPTED) from None
    except NoModel as error:
        raise fail(str(error)) from None
    except ReplayError as error:
        raise fail(str(error), 2) from None
    if as_json:
        print(to_json(report))
    else:
        out.print(tables(report))
    if report.interrupted:
        raise typer.Exit(_INTERRUPTED)
    raise typer.Exit(1 if report.failed else 0)


def simulate(
    *,
    workers: Annotated[int, typer.Option(min=1, help="How many workers.")] = 8,
    port: Annotated[int, typer.Option(help="The first worker's port; 0: any.")] = 9001,
    profile: Annotated[str, typer.Option(help=f"One of {', '.join(PROFILES)}.")] = next(
        iter(PROFILES)
    ),
    model: Annotated[str, typer.Option(help="The model's name.")] = demo.MODEL,
    speed: Annotated[float, typer.Option(help="Simulated seconds per second.")] = 1.0,
    kv_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens each KV cache holds. Default: the profile's.")
    ] = None,
    host_tokens: Annotated[
        int, typer.Option(min=0, help="Tokens that each host's memory holds behind the GPU (L1).")
    ] = 0,
    store_tokens: Annotated[
        int, typer.Option(min=0, help="Tokens that a store shared by all workers holds (L2).")
    ] = 0,
    store_url: Annotated[
        str | None,
        typer.Option(help="Redis to use as that store. Default: memory of this process."),
    ] = None,
    max_queued: Annotated[
        int | None, typer.Option(min=0, help="Requests that may wait at a worker; more get 503.")
    ] = None,
    kv_port: Annotated[int, typer.Option(help="The first port of KV events; 0: any.")] = 0,
    kv_encoding: Annotated[
        Encoding,
        typer.Option(help="Encoding of KV events: map, as vLLM since 0.24; array, as before."),
    ] = "map",
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="Folder of a model whose tokenizer and chat template are used."),
    ] = None,
) -> None:
    """Run simulated vLLM workers, to try a router with."""
    logs.set_up("warning")
    with _advising():
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
        run_fleet(settings, _announce)


def _announce(fleet: SimulatedFleet) -> None:
    err.print("Of each worker: URL, KV events, replay of KV events")
    for worker in fleet.workers:
        print(worker.url, worker.kv_events, worker.kv_replay, flush=True)
    err.print("To route to them:", *("warmroute", "serve", *(one.url for one in fleet.workers)))


@contextmanager
def _advising() -> Iterator[None]:
    """Say what is wrong with the options, or which one helps, if a fleet cannot be run."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            option = "--kv-port" if "tcp://" in str(error) else "--port"
            raise fail(f"{error.strerror}. Choose another port with {option}.") from None
        raise fail(str(error)) from None
    except (ValueError, OverflowError) as error:
        raise fail(str(error), 2) from None
