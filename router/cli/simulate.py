"""The command `simulate`: simulated vLLM workers, to try a router with."""

import errno
from pathlib import Path
from typing import Annotated

import typer

from router.cli.demo import MODEL
from router.cli.terminal import fail, tell
from router.runtime import logs
from simulator.engine.profiles import PROFILES
from simulator.fleet import SimulatedFleet, run_fleet
from simulator.kv.events import Encoding
from simulator.settings import FleetSettings


def simulate(
    *,
    workers: Annotated[int, typer.Option(min=1, help="How many workers.")] = 8,
    port: Annotated[int, typer.Option(help="The first worker's port; 0: any.")] = 9001,
    profile: Annotated[str, typer.Option(help=f"One of {', '.join(PROFILES)}.")] = next(
        iter(PROFILES)
    ),
    model: Annotated[str, typer.Option(help="The model's name.")] = MODEL,
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
        run_fleet(settings, _announce)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            option = "--kv-port" if "tcp://" in str(error) else "--port"
            raise fail(f"{error.strerror}. Choose another port with {option}.") from None
        raise fail(str(error)) from None
    except (ValueError, OverflowError) as error:
        raise fail(str(error), 2) from None


def _announce(fleet: SimulatedFleet) -> None:
    tell("Of each worker: URL, KV events, replay of KV events")
    for worker in fleet.workers:
        print(worker.url, worker.kv_events, worker.kv_replay, flush=True)
    tell(f"To route to them: warmroute serve {' '.join(worker.url for worker in fleet.workers)}")
