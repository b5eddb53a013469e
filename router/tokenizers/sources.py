"""Where the tokenizer of a model comes from: which source, its folder, and the search for it.

`origin` says where to look, by the settings and by what workers report. `snapshot` gets a model's
folder from the Hugging Face hub: from its cache, else by a download of the few small files that
routing needs. `TokenizerFinder` searches in the background, and again after a while if nothing was
found.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from fnmatch import fnmatch
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from router.rendering.folder import MAX_FILE_BYTES, PATTERNS, BadFolder, has_tokenizer
from router.rendering.probes import answers
from router.rendering.tokens import LoadedTokenizer
from router.runtime.threads import aside
from router.settings.tokenizer import TokenizerSettings, is_hub_id

if TYPE_CHECKING:
    from router.tokenizers.loader import TokenizerCache

Described = Mapping[str, Mapping[str, Any]]
"""A worker's models by name, each as described by its `/v1/models`."""

Fingerprint = Mapping[str, tuple[str | None, str | None]]
"""The part of `Described` that matters here: what each model was loaded from, and its base."""

_BY_SETTINGS = "the settings say so"


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
        return Origin(SourceKind.TEXT, why=_BY_SETTINGS)
    if source == "worker":
        return at_workers(model, described, _BY_SETTINGS)._replace(told=True)
    if source != "auto":
        named = _named(source, _BY_SETTINGS)
        return (named or Origin(SourceKind.TEXT, why="the settings name no tokenizer"))._replace(
            told=True
        )
    root = _root(model, described)
    if root is None:
        return Origin(SourceKind.TEXT, why="its workers do not tell where they have it from")
    reported = _named(root, "its workers have it from there")
    return reported or Origin(
        SourceKind.TEXT, why=f"{root[:100]!r} is neither a folder nor a hub id"
    )


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
    card = described.get(model, {})
    root = _text(card, "root")
    return f"{root or ''}\0{model}" if _text(card, "parent") is not None else root or model


def is_adapter(model: str, described: Described) -> bool:
    """Return true if the model is an adapter."""
    return _text(described.get(model, {}), "parent") is not None


def fingerprint(described: Described) -> Fingerprint:
    """Return the part of a description whose change requires a new check."""
    return {name: (_text(card, "root"), _text(card, "parent")) for name, card in described.items()}


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
    cards = described.values()
    bases = {_text(base, "root") for base in cards if _text(base, "parent") is None}
    return bases.pop() if len(bases) == 1 else None


def _text(card: Mapping[str, Any], field: str) -> str | None:
    value = card.get(field)
    return value if isinstance(value, str) and value else None


#: Files to fetch; the presence of the last one tells which format a model's weights have.
_WANTED = [*PATTERNS, "model.safetensors.index.json"]


class NotFetched(Exception):
    """A model's folder cannot be obtained; the message says why, on one line."""


def snapshot(name: str, *, fresh: bool = False) -> Path:
    """Return the folder of the model `name` on the hub. Raises NotFetched.

    The cache is used if it has a tokenizer, as engines that run from it look no further either.
    With `fresh`, the hub is asked first whether there is a newer version. Blocks for as long as the
    network takes.
    """
    from huggingface_hub import constants  # noqa: PLC0415 - slow to import, and seldom needed

    if not fresh or constants.HF_HUB_OFFLINE:
        path = _cached(name)
        if path is not None:
            return path
    if constants.HF_HUB_OFFLINE:
        raise NotFetched(f"{name} is not in the hub's cache, and HF_HUB_OFFLINE is set")
    return _fetched(name)


def _cached(name: str) -> Path | None:
    from huggingface_hub import snapshot_download  # noqa: PLC0415

    try:
        path = Path(snapshot_download(name, allow_patterns=_WANTED, local_files_only=True))
    except Exception:  # noqa: BLE001 - whatever is wrong with the cache, the hub may do better
        return None
    # Engines put weights into this cache too, so a snapshot may lack what is needed here.
    return path if has_tokenizer(path) else None


def _fetched(name: str) -> Path:
    from huggingface_hub import errors, model_info, snapshot_download  # noqa: PLC0415
    from huggingface_hub.utils.tqdm import disable_progress_bars  # noqa: PLC0415

    disable_progress_bars()
    try:
        for file in model_info(name, files_metadata=True).siblings or ():
            wanted = any(fnmatch(file.rfilename, pattern) for pattern in _WANTED)
            if wanted and (file.size or 0) > MAX_FILE_BYTES:
                raise NotFetched(f"{file.rfilename} of {name} is over {MAX_FILE_BYTES >> 20} MiB")
        path = Path(snapshot_download(name, allow_patterns=_WANTED))
    except NotFetched:
        raise
    except errors.GatedRepoError:
        raise NotFetched(f"{name} is gated on the hub: HF_TOKEN has to open it") from None
    except errors.RepositoryNotFoundError:
        raise NotFetched(f"{name} is not on the hub, or HF_TOKEN does not open it") from None
    except Exception as error:  # noqa: BLE001 - a network has many ways to fail
        message = ": ".join(filter(None, (type(error).__name__, str(error).split("\n")[0][:200])))
        raise NotFetched(f"{name} cannot be fetched from the hub: {message}") from None
    if not has_tokenizer(path):
        raise NotFetched(f"{name} has no tokenizer on the hub")
    return path


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
    def of(cls, origin: Origin, settings: TokenizerSettings) -> "TokenizerSearch":
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
    """Finds tokenizers. `ended` is called whenever a search has ended."""

    def __init__(self, ended: Callable[[], None], cache: "TokenizerCache | None" = None) -> None:
        self._ended = ended
        self._cache, self._making = cache, Lock()
        self._searches: dict[TokenizerSearch, _Search] = {}
        self._turns = asyncio.Semaphore(MAX_CONCURRENT_SEARCHES)

    def look(self, wanted: TokenizerSearch) -> LoadedTokenizer | NoTokenizerFound | None:
        """Return what was found, or why nothing was; None during the first search.

        A failed search is repeated when it is due.
        """
        search = self._searches.setdefault(wanted, _Search())
        missing = not isinstance(search.result, LoadedTokenizer)
        if search.task is None and missing and search.due <= monotonic():
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
        for other in set(self._searches).difference(wanted):
            task = self._searches.pop(other).task
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
                find = self._find
                search.result = await aside(lambda: find(wanted, fresh=fresh), SEARCH_TIMEOUT_S)
            search.failures = 0
        except Exception as error:  # noqa: BLE001 - whatever a file holds, routing goes on
            search.failures += 1
            pause = min(MAX_RETRY_INTERVAL_S, RETRY_INTERVAL_S * 2.0 ** (search.failures - 1))
            search.due = monotonic() + pause
            why = _why(error, wanted)
            if isinstance(search.result, LoadedTokenizer):  # it is as good as before; if not,
                log.warning("%s; what was found before stays", why)  # workers will differ
            else:
                search.result = NoTokenizerFound(why)
        finally:
            search.task = None
            if search.once_more and self._searches.get(wanted) is search:
                self._begin(wanted, search, fresh=search.fresh)
            self._ended()

    def _find(self, wanted: TokenizerSearch, *, fresh: bool) -> LoadedTokenizer:
        """Find a tokenizer; runs in a thread. Raises BadFolder, NotFetched."""
        if wanted.kind is SourceKind.HUB:
            path = snapshot(wanted.name, fresh=fresh)
        else:
            path = Path(wanted.name)
            if not has_tokenizer(path):
                raise BadFolder(f"{path} is not a folder with a tokenizer here")
        with self._making:  # at first use, because its libraries take 10 MB
            if self._cache is None:
                from router.tokenizers.loader import TokenizerCache  # noqa: PLC0415

                self._cache = TokenizerCache()
        keywords = json.loads(wanted.keywords)
        tokenizer = self._cache.open(path, wanted.template, keywords, wanted.mode)
        if not answers(tokenizer.exact):
            raise BadFolder(f"of {wanted.name} engines make tokens in a way that is not known here")
        return tokenizer


def _why(error: Exception, wanted: TokenizerSearch) -> str:
    if isinstance(error, TimeoutError):
        return f"{wanted.name} was not there after {SEARCH_TIMEOUT_S:g}s"
    if not isinstance(error, BadFolder | NotFetched):
        log.error("internal error with %s", wanted.name, exc_info=error)
        return f"an internal error with {wanted.name}"
    return str(error)
