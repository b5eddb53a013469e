"""Looking for tokenizers in the background, and again after a while where there was none."""

import asyncio
import json
import logging
from collections.abc import Callable, Collection
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from router.identity.agreement import answers
from router.identity.aside import aside
from router.identity.folder import BadFolder, has_tokenizer
from router.identity.hub import NotFetched, snapshot
from router.identity.sources import Kind, Origin
from router.identity.volume import Volume
from router.settings_identity import TokenizerSettings

if TYPE_CHECKING:
    from router.identity.shelf import Shelf

log = logging.getLogger("warmroute.tokenizers")

#: Seconds that one search may take, a download included.
PATIENCE_S = 120.0
#: Searches at once.
AT_ONCE = 2
#: Seconds until a search that failed is made again: doubled each time, up to an hour.
FIRST_S, LONGEST_S = 60.0, 3600.0


class Wanted(NamedTuple):
    """What is looked for."""

    kind: Kind
    name: str
    """The folder's path or the hub id; of other kinds why they are what they are."""
    template: Path | None = None
    keywords: str = "{}"
    """As JSON, with sorted keys."""
    mode: str = "auto"
    """Which of the engines' ways to make tokens."""

    @classmethod
    def told(cls, origin: Origin, settings: TokenizerSettings) -> "Wanted":
        """As an origin and the settings tell."""
        keywords = json.dumps(settings.keywords, sort_keys=True)
        name = origin.name or origin.why
        return cls(origin.kind, name, settings.chat_template, keywords, settings.mode)


class Missing(NamedTuple):
    """It was not found, and why: in words."""

    why: str


class _Search:
    """What is known of one that is wanted."""

    def __init__(self) -> None:
        self.result: Volume | Missing | None = None
        self.task: asyncio.Task[None] | None = None
        self.failures = 0
        self.due = 0.0
        self.once_more = self.fresh = False
        """To be made again when the one under way has ended, for it may have begun too early."""


class Finding:
    """Finds tokenizers. `told` is called whenever a search has ended."""

    def __init__(self, told: Callable[[], None], shelf: "Shelf | None" = None) -> None:
        self._told = told
        self._shelf, self._opening = shelf, Lock()
        self._searches: dict[Wanted, _Search] = {}
        self._turns = asyncio.Semaphore(AT_ONCE)

    def look(self, wanted: Wanted) -> Volume | Missing | None:
        """Return what was found, or why nothing was; None while it is looked for the first time.

        What was missing is looked for again when it is time.
        """
        search = self._searches.get(wanted)
        if search is None:
            search = self._searches[wanted] = _Search()
        if (
            search.task is None
            and not isinstance(search.result, Volume)
            and search.due <= monotonic()
        ):
            self._begin(wanted, search, fresh=False)
        return search.result

    def again(self, wanted: Wanted, *, fresh: bool = False) -> None:
        """Look again: it may have changed. What was found stays until then.

        With `fresh`, for something newer than what is at hand too.
        """
        search = self._searches.get(wanted)
        if search is not None and search.task is None:
            self._begin(wanted, search, fresh=fresh)
        elif search is not None:
            search.once_more, search.fresh = True, search.fresh or fresh

    def keep(self, wanted: Collection[Wanted]) -> None:
        """Forget all others."""
        for one in set(self._searches).difference(wanted):
            task = self._searches.pop(one).task
            if task is not None:
                task.cancel()

    @property
    def busy(self) -> bool:
        """Something is being looked for."""
        return any(search.task is not None for search in self._searches.values())

    async def close(self) -> None:
        """Look for nothing more."""
        tasks = [search.task for search in self._searches.values() if search.task is not None]
        self.keep(())
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, wanted: Wanted, search: _Search, *, fresh: bool) -> None:
        search.once_more = search.fresh = False
        search.task = asyncio.create_task(self._search(wanted, search, fresh=fresh))

    async def _search(self, wanted: Wanted, search: _Search, *, fresh: bool) -> None:
        try:
            async with self._turns:
                search.result = await aside(lambda: self._find(wanted, fresh=fresh), PATIENCE_S)
            search.failures = 0
        except Exception as error:  # noqa: BLE001 - whatever a file holds, routing goes on
            search.failures += 1
            pause = min(LONGEST_S, FIRST_S * 2.0 ** (search.failures - 1))
            search.due = monotonic() + pause
            missing = Missing(_why(error, wanted))
            if isinstance(search.result, Volume):  # as good as before; agreement tells if not
                log.warning("%s; what was found before stays", missing.why)
            else:
                search.result = missing
        finally:
            search.task = None
            if search.once_more and self._searches.get(wanted) is search:
                self._begin(wanted, search, fresh=search.fresh)
            self._told()

    def _find(self, wanted: Wanted, *, fresh: bool) -> Volume:
        """Runs in a thread. Raises BadFolder, NotFetched."""
        if wanted.kind is Kind.HUB:
            path = snapshot(wanted.name, fresh=fresh)
        else:
            path = Path(wanted.name)
            if not has_tokenizer(path):
                raise BadFolder(f"{path} is not a folder with a tokenizer here")
        keywords = json.loads(wanted.keywords)
        volume = self._opened().open(path, wanted.template, keywords, wanted.mode)
        if not answers(volume.exact):
            raise BadFolder(f"of {wanted.name} engines make tokens in a way that is not known here")
        return volume

    def _opened(self) -> "Shelf":
        """Make the shelf, once. Its libraries take 10 MB: only where a tokenizer is looked for."""
        with self._opening:
            if self._shelf is None:
                from router.identity.shelf import Shelf  # noqa: PLC0415

                self._shelf = Shelf()
            return self._shelf


def _why(error: Exception, wanted: Wanted) -> str:
    if isinstance(error, TimeoutError):
        return f"{wanted.name} was not there after {PATIENCE_S:g}s"
    if not isinstance(error, BadFolder | NotFetched):
        log.error("internal error with %s", wanted.name, exc_info=error)
        return f"an internal error with {wanted.name}"
    return str(error)
