"""Progress of a replay: a bar on a terminal, otherwise a line every ten seconds; on stderr."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import perf_counter

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

_REDRAW_S = 0.25
_LINE_S = 10.0


@dataclass(slots=True)
class Tally:
    """Counts while a replay runs."""

    total: int
    done: int = 0
    in_flight: int = 0
    errors: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0

    def __str__(self) -> str:
        hits = f"{self.cached_tokens / self.prompt_tokens:.0%}" if self.prompt_tokens else "-"
        return f"{self.in_flight} in flight, {self.errors} errors, hit rate {hits}"


@asynccontextmanager
async def shown(tally: Tally, console: Console | None) -> AsyncIterator[None]:
    """Show the tally on the console while the block runs; do nothing if that is None."""
    if console is None:
        yield
        return
    showing = asyncio.create_task(
        _bar(tally, console) if console.is_terminal else _lines(tally, console)
    )
    try:
        yield
    finally:
        showing.cancel()
        await asyncio.gather(showing, return_exceptions=True)


async def _bar(tally: Tally, console: Console) -> None:
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    # Redrawn from here and not from rich's own thread, which would take CPU at any moment.
    with Progress(*columns, console=console, auto_refresh=False, transient=True) as progress:
        bar = progress.add_task("", total=tally.total)
        while True:
            progress.update(bar, completed=tally.done, description=str(tally), refresh=True)
            await asyncio.sleep(_REDRAW_S)


async def _lines(tally: Tally, console: Console) -> None:
    began = perf_counter()
    while True:
        await asyncio.sleep(_LINE_S)
        passed = perf_counter() - began
        console.print(f"{passed:.0f} s: {tally.done} of {tally.total} done, {tally}", markup=False)
