"""The command `replay`: recorded traffic, sent to any OpenAI-compatible server."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from router.cli.terminal import INTERRUPTED, Ca, fail, key_of, trust_of, url_of
from router.replay.plan import Endpoint, NoModel, Options, ReplayError
from router.replay.report import tables, to_json
from router.replay.run import replay_trace


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
        options = Options(
            url=url_of(url),
            rate=rate,
            speed=speed,
            limit=limit,
            endpoint=endpoint,
            model=model,
            max_tokens=max_tokens,
            concurrency=concurrency,
            api_key=key_of(api_key),
            trust=trust_of(ca, url),
        )
        report = replay_trace(trace, options, as_recorded=as_recorded)
    except KeyboardInterrupt:
        raise fail("interrupted", INTERRUPTED) from None
    except NoModel as error:
        raise fail(str(error)) from None
    except ReplayError as error:
        raise fail(str(error), 2) from None
    if as_json:
        print(to_json(report))
    else:
        Console().print(tables(report))
    if report.interrupted:
        raise typer.Exit(INTERRUPTED)
    raise typer.Exit(1 if report.failed else 0)
