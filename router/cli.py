"""The command line. Exit codes: 0 well, 1 failed, 2 the input is wrong."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer
import uvloop
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from router import __version__, controller_command, demo, logs, server, settings_file
from router import explain as explaining
from router.check_live import check_live
from router.rebuild import CannotBuild
from router.rehearsal import rehearse
from router.reload import Source
from router.replay import ReplayError, replay_trace
from router.replay_plan import Endpoint
from router.replay_report import to_json
from router.replay_tables import tables
from router.serve import serve as run_serve
from router.settings import LogSettings, Settings
from router.settings_file import Loaded
from router.snapshots import CannotRestore
from router.units import Address, parse_duration
from simulator.fleet import Fleet, FleetSettings, run_fleet
from simulator.profiles import PROFILES
from simulator.wire import Encoding

app = typer.Typer(
    name="warmroute",
    help="The front door for vLLM fleets that knows where the cache is warm.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
_out = Console()
_err = Console(stderr=True, highlight=False, soft_wrap=True)

ConfigFile = Annotated[Path, typer.Option("--config", "-c", help="The YAML file.")]


def _fail(message: str, code: int = 1) -> typer.Exit:
    _err.print(message, markup=False)
    return typer.Exit(code)


Workers = Annotated[
    str | None,
    typer.Option(
        envvar="WARMROUTE_WORKERS",
        help="URLs of an InferenceEndpointConfig's workers, parted by commas.",
    ),
]


def _load(file: Path, workers: str | None) -> Loaded:
    try:
        return settings_file.take(file, workers)
    except settings_file.SettingsError as error:
        raise _fail(str(error), 2) from None


def _address(text: str) -> Address:
    try:
        return Address.parse(text)
    except ValueError as error:
        raise _fail(f"--listen: {error}", 2) from None


def _duration(option: str, text: str) -> float:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise _fail(f"{option}: {error}", 2) from None
    if seconds <= 0:
        raise _fail(f"{option}: more than 0s is needed", 2)
    return seconds


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"warmroute {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, help="Print the version.")
    ] = False,
) -> None:
    """Route OpenAI requests to the vLLM worker that will answer soonest."""


@app.command()
def serve(
    config: ConfigFile,
    listen: Annotated[
        str | None, typer.Option(help="HOST:PORT to listen on, in place of the file's.")
    ] = None,
    processes: Annotated[
        int, typer.Option(min=1, help="How many share the port, one for each core.")
    ] = 1,
    workers: Workers = None,
) -> None:
    """Open the front door and serve until told to stop."""
    source = Source(config, _address(listen) if listen else None, workers)
    try:
        code = run_serve(
            source,
            processes,
            lambda url: _err.print(f"Warmroute {__version__} listens on {url}", markup=False),
        )
    except settings_file.SettingsError as error:
        raise _fail(str(error), 2) from None
    except ValueError as error:
        raise _fail(f"--listen: {error}", 2) from None
    except (CannotBuild, server.PortTaken) as error:
        raise _fail(str(error)) from None
    raise typer.Exit(code)


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="The YAML file.")],
    live: Annotated[
        bool, typer.Option("--live", help="Ask the workers instead: are they there, do we agree?")
    ] = False,
    ask: Annotated[
        bool,
        typer.Option(
            "--ask/--no-ask",
            help="With --live, each worker computes some short prompts, with answers of one token."
            " Tells whether cached tokens are reported, and events and chunks come, and compares"
            " block names.",
        ),
    ] = True,
    explain_mapping: Annotated[
        bool, typer.Option("--explain-mapping", help="Say what a manifest's fields become.")
    ] = False,
    workers: Workers = None,
) -> None:
    """Say everything that is wrong with a file, or everything that would be used."""
    settings, notes = _load(file, workers)
    if live:
        raise typer.Exit(_check_live(settings, ask=ask))
    if reason := uvloop.run(rehearse(settings)):
        raise _fail(f"{file}: {reason}")
    if explain_mapping and not notes:
        raise _fail(f"{file} is no manifest: its settings are what they are", 2)
    if explain_mapping:
        _print(("field", "value", "becomes", ""), [(*note[:3], note.fate.value) for note in notes])
    else:
        _print(("setting", "value", "from"), settings_file.describe(settings))


def _print(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")  # never cut: this is what will be used
    for row in rows:
        table.add_row(*map(escape, row))
    _out.print(table)


def _check_live(settings: Settings, *, ask: bool) -> int:
    """Print what every worker says; return the exit code."""
    logs.set_up(LogSettings(level="error"))
    try:
        lines, well = uvloop.run(check_live(settings, ask=ask))
    except CannotBuild as error:
        raise _fail(str(error)) from None
    for line in lines:
        print(line)
    return 0 if well else 1


@app.command("controller")
def run_controller(
    config: ConfigFile,
    listen: Annotated[
        str, typer.Option(help="HOST:PORT of its HTTP API; keys are those of `auth`.")
    ] = "127.0.0.1:8090",
    snapshot: Annotated[
        Path | None, typer.Option(help="Taken over at the start, and written at the end.")
    ] = None,
    every: Annotated[str, typer.Option(help="And this often, in between.")] = "5m",
    workers: Workers = None,
) -> None:
    """Listen to the workers of a kvaware pool, and answer routers what they hold."""
    settings, _ = _load(config, workers)
    try:
        address = _address(listen)
        uvloop.run(
            controller_command.run(
                settings,
                address,
                snapshot,
                _duration("--every", every),
                lambda url: _err.print(f"Warmroute controller listens on {url}", markup=False),
            )
        )
    except ValueError as error:
        raise _fail(f"--listen: {error}", 2) from None
    except (CannotBuild, server.PortTaken, CannotRestore) as error:
        raise _fail(str(error)) from None


@app.command()
def explain(
    *,
    file: Annotated[Path, typer.Argument(help="The YAML file.")],
    request: Annotated[Path, typer.Option(help="The body of a request, JSON.")],
    url: Annotated[
        str | None, typer.Option(help="Ask the router that runs there, with all it knows.")
    ] = None,
    path: Annotated[str, typer.Option(help="The endpoint it is for.")] = "/v1/chat/completions",
    api_key: Annotated[
        str | None, typer.Option(envvar="WARMROUTE_ADMIN_KEY", help="An operator's key.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
    workers: Workers = None,
) -> None:
    """Say where a request would go and why, without sending it anywhere."""
    settings, _ = _load(file, workers)
    try:
        body = request.read_bytes()
    except OSError as error:
        raise _fail(f"--request {request}: {error.strerror or error}", 2) from None
    try:
        if url is None:
            found = explaining.explained_offline(settings, path, body)
        else:
            found = explaining.explained_by(url, path, body, api_key)
    except explaining.CannotExplain as error:
        raise _fail(str(error), 2 if url is None else 1) from None
    except CannotBuild as error:
        raise _fail(str(error)) from None
    if as_json:
        print(explaining.to_json(found))
    else:
        _out.print(explaining.table(found))


@app.command()
def schema() -> None:
    """Print the JSON schema of the YAML file."""
    print(settings_file.schema_text(), end="")


@app.command("demo")
def run_demo(
    once: Annotated[bool, typer.Option("--once", help="End after the comparison.")] = False,
    listen: Annotated[
        str, typer.Option(help="HOST:PORT of the router that stays.")
    ] = "127.0.0.1:8080",
    seed: Annotated[int, typer.Option(help="Another seed is another workload.")] = 1,
) -> None:
    """Route real traffic over a simulated fleet, by round robin and by prefix, and compare."""
    options = demo.DemoOptions(listen=_address(listen), once=once, seed=seed)
    try:
        code = uvloop.run(demo.run(options, _out, _err))
    except (demo.DemoError, server.PortTaken, ReplayError) as error:
        raise _fail(str(error)) from None
    raise typer.Exit(code)


@app.command()
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
        raise _fail(str(error), 2) from None
    if as_json:
        print(to_json(report))
    else:
        _out.print(tables(report))
    raise typer.Exit(1 if report.failed else 0)


@app.command()
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
        _err.print("URL, KV events and their replay of each worker:")
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
    except (OSError, ValueError) as error:
        raise _fail(str(error)) from None
