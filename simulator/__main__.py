"""`python -m simulator`: a fleet of simulated workers, from the command line."""

import logging
from typing import Annotated

import typer

from simulator.fleet import Fleet, FleetSettings, run_fleet
from simulator.profiles import PROFILES


def main(
    *,
    workers: Annotated[int, typer.Option(min=1, help="How many workers.")] = 1,
    profile: Annotated[str, typer.Option(help=f"One of {', '.join(PROFILES)}.")] = next(
        iter(PROFILES)
    ),
    model: Annotated[str, typer.Option(help="The model's name.")] = "llama-3.1-8b",
    speed: Annotated[float, typer.Option(help="Simulated seconds in a real one.")] = 1.0,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The first worker's port; 0: any.")] = 0,
    kv_port: Annotated[int, typer.Option(help="The first KV event port; 0: any.")] = 0,
    max_queued: Annotated[
        int | None, typer.Option(help="Requests that may wait at a worker.")
    ] = None,
) -> None:
    """Run simulated vLLM workers until interrupted."""
    logging.basicConfig(format="%(levelname)s %(message)s")
    try:
        settings = FleetSettings(
            workers=workers,
            profile=profile,
            models=(model,),
            speed=speed,
            host=host,
            port=port,
            kv_port=kv_port,
            max_queued=max_queued,
        )
        run_fleet(settings, _announce)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error


def _announce(fleet: Fleet) -> None:
    for worker in fleet.workers:
        typer.echo(f"{worker.name}  {worker.url}  events {worker.kv_events}")


if __name__ == "__main__":
    typer.run(main)
