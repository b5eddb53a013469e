"""Where to look for a model's tokenizer, according to the settings and the workers. Pure.

Searches for tokenizers in the background, repeated after a while if nothing was found.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from router.rendering.errors import BadFolder
from router.rendering.folder import has_tokenizer
from router.runtime.threads import aside
from router.settings.tokenizer import TokenizerSettings, is_hub_id
from router.tokenizers.hub import NotFetched, snapshot
from router.tokenizers.probes import answers
from router.tokenizers.tokenizer import LoadedTokenizer

if TYPE_CHECKING:
    from router.tokenizers.loader import TokenizerCache

Described = Mapping[str, Mapping[str, Any]]
"""A worker's models by name, each as described by its `/v1/models`."""

Fingerprint = Mapping[str, tuple[str | None, str | None]]
"""The part of `Described` that matters here: what each model was loaded from, and its base."""

_SAID = "the settings say so"


class SourceKind(StrEnum):
    """The kind of a source."""

    FOLDER = "folder"
    HUB = "hub"
    WORKER = "worker"
    TEXT = "text"
    """No source: prompts are keyed by their text."""


class Origin(NamedTuple):
    """A tokenizer source."""

    kind: SourceKind
    name: str = ""
    """The folder's path, or the hub id; for workers, what they have loaded."""
    why: str = ""
    """Why this source was chosen."""
    told: bool = False
    """Whether the settings name it, in which case its absence is a mistake."""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".strip()


def origin(source: str, model: str, described: Described) -> Origin:
    """Return where to look for the tokenizer of `model`, which a worker has `described`.

    `source` is the setting. With `auto`, it is where the engine loaded the weights from, as the
    tokenizer lies beside them. An adapter uses its base model's.
    """
    if source == "bytes":
        return Origin(SourceKind.TEXT, why=_SAID)
    if source == "worker":
        return at_workers(model, described, _SAID)._replace(told=True)
    if source != "auto":
        named = _named(source, _SAID) or Origin(
            SourceKind.TEXT, why="the settings name no tokenizer"
        )
        return named._replace(told=True)
    root = _root(model, described)
    if root is None:
        return Origin(SourceKind.TEXT, why="its workers do not tell where they have it from")
    loaded = _named(root, "its workers have it from there")
    return loaded or Origin(SourceKind.TEXT, why=f"{root[:100]!r} is neither a folder nor a hub id")


def at_workers(model: str, described: Described, why: str) -> Origin:
    """Return the origin for asking workers: equal models make equal tokens."""
    return Origin(SourceKind.WORKER, _root(model, described) or model, why)


def identity(model: str, described: Described) -> str:
    """Return the model's name in keys: equal for models that share blocks in the engine, else not.

    A base model may be served under many names. Engines name blocks by their tokens alone, so all
    these names share blocks, and what the model was loaded from identifies it. An adapter has
    blocks of its own, and engines know it by the name it is served under (an adapter loaded twice
    shares nothing). So that name counts, and also what it was loaded from, as names are reused for
    other adapters.
    """
    found = described.get(model, {})
    root, parent = _text(found, "root"), _text(found, "parent")
    if parent is not None:
        return f"{root or ''}\0{model}"
    return root or model


def is_adapter(model: str, described: Described) -> bool:
    """Return true if the model is an adapter."""
    return _text(described.get(model, {}), "parent") is not None


def fingerprint(described: Described) -> Fingerprint:
    """Return the part of a description whose change requires a new check."""
    return {name: (_text(one, "root"), _text(one, "parent")) for name, one in described.items()}


def loaded(fingerprint: Fingerprint) -> Mapping[str, str | None]:
    """Return what its base models were loaded from, which determines their tokens."""
    return {name: root for name, (root, parent) in fingerprint.items() if parent is None}


def _named(name: str, why: str) -> Origin | None:
    if name.startswith("/"):
        return Origin(SourceKind.FOLDER, name, why)
    return Origin(SourceKind.HUB, name, why) if is_hub_id(name) else None


def _root(model: str, described: Described) -> str | None:
    """Return what the model, or an adapter's base model, was loaded from."""
    card = described.get(model, {})
    parent = _text(card, "parent")
    if parent is None:
        return _text(card, "root")
    if parent in described and parent != model:
        return _text(described[parent], "root")
    # vLLM repeats the base named by the adapter, which may be any of its names, or none.
    bases = {_text(one, "root") for one in described.values() if _text(one, "parent") is None}
    return bases.pop() if len(bases) == 1 else None


def _text(card: Mapping[str, Any], field: str) -> str | None:
    value = card.get(field)
    return value if isinstance(value, str) and value else None


log = logging.getLogger("warmroute.tokenizers")

#: Seconds that one search may take, including a download.
SEARCH_TIMEOUT_S = 120.0
#: Most searches at once.
MAX_CONCURRENT_SEARCHES = 2
#: Seconds until a failed search is repeated; doubled each time, up to an hour.
RETRY_INTERVAL_S, MAX_RETRY_INTERVAL_S = 60.0, 3600.0


class TokenizerSearch(NamedTuple):
    """What to search for."""

    kind: SourceKind
    name: str
    """The folder's path or the hub id; for other kinds, why they were chosen."""
    template: Path | None = None
    keywords: str = "{}"
    """The template's keywords as JSON, with sorted keys."""
    mode: str = "auto"
    """How engines tokenize, as in the settings."""

    @classmethod
    def told(cls, origin: Origin, settings: TokenizerSettings) -> "TokenizerSearch":
        """Return what to search for, from an origin and the settings."""
        keywords = json.dumps(settings.keywords, sort_keys=True)
        name = origin.name or origin.why
        return cls(origin.kind, name, settings.chat_template, keywords, settings.mode)


class NoTokenizerFound(NamedTuple):
    """The result of a failed search: why it failed, in words."""

    why: str


class _Search:
    """The state of one search."""

    def __init__(self) -> None:
        self.result: LoadedTokenizer | NoTokenizerFound | None = None
        self.task: asyncio.Task[None] | None = None
        self.failures = 0
        self.due = 0.0
        self.once_more = self.fresh = False
        """Whether to repeat the search when the current one ends, as that may have started too
        early."""


class TokenizerFinder:
    """Finds tokenizers. `told` is called whenever a search has ended."""

    def __init__(self, told: Callable[[], None], shelf: "TokenizerCache | None" = None) -> None:
        self._told = told
        self._shelf, self._opening = shelf, Lock()
        self._searches: dict[TokenizerSearch, _Search] = {}
        self._turns = asyncio.Semaphore(MAX_CONCURRENT_SEARCHES)

    def look(self, wanted: TokenizerSearch) -> LoadedTokenizer | NoTokenizerFound | None:
        """Return what was found, or why nothing was; None during the first search.

        A failed search is repeated when it is due.
        """
        search = self._searches.get(wanted)
        if search is None:
            search = self._searches[wanted] = _Search()
        if (
            search.task is None
            and not isinstance(search.result, LoadedTokenizer)
            and search.due <= monotonic()
        ):
            self._begin(wanted, search, fresh=False)
        return search.result

    def again(self, wanted: TokenizerSearch, *, fresh: bool = False) -> None:
        """Search again, as the tokenizer may have changed. The old result holds until then.

        With `fresh`, look for a newer one than the cached one too.
        """
        search = self._searches.get(wanted)
        if search is not None and search.task is None:
            self._begin(wanted, search, fresh=fresh)
        elif search is not None:
            search.once_more, search.fresh = True, search.fresh or fresh

    def keep(self, wanted: Collection[TokenizerSearch]) -> None:
        """Forget all other searches."""
        for one in set(self._searches).difference(wanted):
            task = self._searches.pop(one).task
            if task is not None:
                task.cancel()

    @property
    def busy(self) -> bool:
        """Return true if a search is running."""
        return any(search.task is not None for search in self._searches.values())

    async def close(self) -> None:
        """Stop all searches."""
        tasks = [search.task for search in self._searches.values() if search.task is not None]
        self.keep(())
        await asyncio.gather(*tasks, return_exceptions=True)

    def _begin(self, wanted: TokenizerSearch, search: _Search, *, fresh: bool) -> None:
        search.once_more = search.fresh = False
        search.task = asyncio.create_task(self._search(wanted, search, fresh=fresh))

    async def _search(self, wanted: TokenizerSearch, search: _Search, *, fresh: bool) -> None:
        try:
            async with self._turns:
                search.result = await aside(
                    lambda: self._find(wanted, fresh=fresh), SEARCH_TIMEOUT_S
                )
            search.failures = 0
        except Exception as error:  # noqa: BLE001 - whatever a file holds, routing goes on
            search.failures += 1
            pause = min(MAX_RETRY_INTERVAL_S, RETRY_INTERVAL_S * 2.0 ** (search.failures - 1))
            search.due = monotonic() + pause
            missing = NoTokenizerFound(_why(error, wanted))
            if isinstance(
                search.result, LoadedTokenizer
            ):  # as good as before; agreement tells if not
                log.warning("%s; what was found before stays", missing.why)
            else:
                search.result = missing
        finally:
            search.task = None
            if search.once_more and self._searches.get(wanted) is search:
                self._begin(wanted, search, fresh=search.fresh)
            self._told()

    def _find(self, wanted: TokenizerSearch, *, fresh: bool) -> LoadedTokenizer:
        """Find a tokenizer; runs in a thread. Raises BadFolder, NotFetched."""
        if wanted.kind is SourceKind.HUB:
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

    def _opened(self) -> "TokenizerCache":
        """Return the shelf, made at first use, because its libraries take 10 MB."""
        with self._opening:
            if self._shelf is None:
                from router.tokenizers.loader import TokenizerCache  # noqa: PLC0415

                self._shelf = TokenizerCache()
            return self._shelf


def _why(error: Exception, wanted: TokenizerSearch) -> str:
    if isinstance(error, TimeoutError):
        return f"{wanted.name} was not there after {SEARCH_TIMEOUT_S:g}s"
    if not isinstance(error, BadFolder | NotFetched):
        log.error("internal error with %s", wanted.name, exc_info=error)
        return f"an internal error with {wanted.name}"
    return str(error)
