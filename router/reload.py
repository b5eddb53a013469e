"""Reloads the settings while the router runs.

On a signal, or when the file has changed, the settings are read again. They are applied as a whole,
or refused as a whole with every problem in the log. What needs a restart stays as it was, and the
log says so.

Describes what a reload changes, for the log. Pure; secrets are compared but never shown.

Valid settings that do not do what they are there for; `check`, the start and reloads warn.

Settings that need a single process: refused with several, at the start and on reload.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import time

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from pydantic import BaseModel

from controller.events.source import binds
from router.fleet.build import CannotBuild
from router.http.tls import Validity, complaint, validity
from router.hyperpod.fields import FieldOutcome, Note
from router.hyperpod.loader import Loaded, take
from router.settings.errors import SettingsError
from router.settings.files import Watch
from router.settings.loader import Arguments
from router.settings.model import PoolSettings, Settings, WorkerSettings
from router.settings.schema import describe
from router.settings.server import KeySettings
from router.settings.types import Address
from strategies import registry
from strategies.api import Strategy

RESTART = ("listen", "admin.listen", "tls.client_ca")
"""Settings that need a restart. A listening socket keeps its address, whether it uses TLS, and
which client certificates it asks for; the router's own certificates are read again."""
_BY_NAME = ("strategy", "tokenizer", "workers", "pools", "auth", "admin.keys")
"""Left out of the comparison by path: these are compared by name, or for each pool."""


#: The end of a sentence about a change that a reload cannot make.
WAITS = "; waits for a restart"


def changes(old: Settings, new: Settings) -> list[str]:
    """Return a sentence for everything that differs."""
    waiting = needs_restart(old, new)
    sentences = [
        f"{path}: {before} → {after}" + (WAITS if path in waiting else "")
        for path, before, after in _differences(old, new)
    ]
    sentences += _keys("auth", old.client_keys, new.client_keys, _who(old), _who(new))
    if _apart(old) != _apart(new):
        sentences.append(f"auth.separate_caches: {_apart(old)} → {_apart(new)}")
    admin = (old.admin.keys, new.admin.keys)
    sentences += _keys("admin", *admin, *("keys" if keys else "as auth" for keys in admin))
    sentences += _pools(old.all_pools(), new.all_pools())
    return sentences


def needs_restart(old: Settings, new: Settings) -> list[str]:
    """Return the changed settings that need a restart."""
    changed = [path for path, _, _ in _differences(old, new)]
    if (old.tls is None) != (new.tls is None):
        return [path for path in changed if path in RESTART or path.startswith("tls.")]
    return [path for path in changed if path in RESTART]


def _differences(
    old: BaseModel, new: BaseModel, left_out: Iterable[str] = _BY_NAME
) -> Iterator[tuple[str, str, str]]:
    """Yield path, old and new text of values that differ; all secrets have the same text."""
    before, after = ({row.path: row.value for row in describe(settings)} for settings in (old, new))
    for path in {**before, **after}:
        previous, current = before.get(path, "none"), after.get(path, "none")
        if previous != current and not any(map(partial(_is_in, path), left_out)):
            yield path, previous, current


def _is_in(path: str, section: str) -> bool:
    return path == section or path.startswith((f"{section}.", f"{section}["))


def _who(settings: Settings) -> str:
    """Say who may use the inference paths, without names of keys."""
    if settings.client_keys:
        return "keys"
    return "everyone on this machine" if settings.auth is None else "none"


def _apart(settings: Settings) -> str:
    """Say whether each key has a separate cache."""
    return "true" if settings.auth is not None and settings.auth.separate_caches else "false"


def _keys(
    section: str,
    old: tuple[KeySettings, ...],
    new: tuple[KeySettings, ...],
    before: str,
    after: str,
) -> Iterator[str]:
    """Compare keys by name; also say if there were none before, or are none now."""
    if before != after:
        yield f"{section}: {before} → {after}"
    ours, theirs = ({key.name: key for key in keys} for keys in (old, new))
    for name in {**ours, **theirs}:
        if name not in theirs:
            yield f"{section}: key {name} removed"
        elif name not in ours:
            yield f"{section}: key {name} added"
        elif ours[name].key != theirs[name].key:
            yield f"{section}: key {name} changed"
        elif ours[name].engine_fields != theirs[name].engine_fields:
            trusts = "now" if theirs[name].engine_fields else "no longer"
            yield f"{section}: key {name} {trusts} may set engine fields"


def _pools(old: tuple[PoolSettings, ...], new: tuple[PoolSettings, ...]) -> Iterator[str]:
    ours, theirs = ({pool.name: pool for pool in pools} for pools in (old, new))
    for name in {**ours, **theirs}:
        if name not in theirs:
            yield f"pool {name} removed"
        elif name not in ours:
            yield f"pool {name} added"
        else:
            yield from _pool(ours[name], theirs[name])
    yield from _workers(_placed(old), _placed(new))


def _pool(old: PoolSettings, new: PoolSettings) -> Iterator[str]:
    left_out = ["workers"]
    if old.strategy.name != new.strategy.name:
        yield f"pool {new.name}: strategy: {old.strategy.name} → {new.strategy.name}"
        left_out.append("strategy")  # options of different strategies cannot be compared
    for path, before, after in _differences(old, new, left_out):
        yield f"pool {new.name}: {path}: {before} → {after}"


_Placed = dict[str, tuple[str, WorkerSettings]]


def _placed(pools: tuple[PoolSettings, ...]) -> _Placed:
    """Return every worker, and the name of its pool, by worker name."""
    return {worker.name: (pool.name, worker) for pool in pools for worker in pool.workers}


def _workers(old: _Placed, new: _Placed) -> Iterator[str]:
    for name in {**old, **new}:
        if name not in new:
            yield f"worker {name} removed from pool {old[name][0]}"
        elif name not in old:
            yield f"worker {name} added to pool {new[name][0]}"
        else:
            yield from _worker(old[name], new[name])


def _worker(old: tuple[str, WorkerSettings], new: tuple[str, WorkerSettings]) -> Iterator[str]:
    (was_in, before), (is_in, after) = old, new
    if was_in != is_in:
        yield f"worker {after.name} moved from pool {was_in} to pool {is_in}"
    for path, previous, current in _differences(before, after, ()):
        yield f"worker {after.name}: {path}: {previous} → {current}"
    if before.api_key and after.api_key and before.api_key != after.api_key:
        yield f"worker {after.name}: api_key changed"


#: Fields of `session` that also concern responses, whatever the strategy.
_FOR_ALL = {"redis"}


def idle(settings: Settings) -> Iterator[str]:
    """Say of each such setting what is missing. Every strategy must have been found."""
    pools = settings.all_pools()
    strategies = [(pool, _made(pool)) for pool in pools]
    keeping = [pool for pool, made in strategies if made and made.capabilities.keeps_sessions]
    asking = [pool for pool, made in strategies if made is None or made.kv is not None]
    for pool in pools:
        name = pool.strategy.name
        if pool not in keeping and any(worker.stateful for worker in pool.workers):
            yield (
                f"pool {pool.name}: `stateful` opens no sessions with the strategy"
                f" {name}: whoever asks for one is refused; write strategy: session"
            )
        if pool not in asking and any(worker.kv_events for worker in pool.workers):
            yield (
                f"pool {pool.name}: `kv_events` is heard by nobody with the strategy {name};"
                " write strategy: kvaware"
            )
    if settings.session.model_fields_set - _FOR_ALL and not keeping:
        yield "session: no pool has a strategy that keeps sessions, as session does"
    if not asking:
        for field in _for_memories(settings):
            yield f"{field}: no pool has a strategy that asks it, as kvaware does"


def _for_memories(settings: Settings) -> Iterator[str]:
    """Yield what is given for strategies that know what workers hold."""
    if settings.controller is not None:
        yield "controller"
    store = settings.tiers.l2.lmcache if settings.tiers.l2.enabled else None
    if store is not None:
        yield f"tiers.l2.lmcache.{'redis' if store.redis else 'coordinator'}"


def _made(pool: PoolSettings) -> Strategy | None:
    """Return the pool's strategy; None if it cannot be made, which others tell."""
    try:
        return registry.make(pool.strategy.name, pool.strategy.options)
    except Exception:  # noqa: BLE001 - an installed package may raise anything
        return None


log = logging.getLogger("warmroute.reload")

#: Seconds between two polls of the file.
POLL_INTERVAL_S = 1.0

#: Puts settings into effect; raises CannotBuild, and then nothing has changed.
Change = Callable[[Settings], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Source:
    """Where the settings are read from, at the start and at every reload."""

    file: Path | Arguments
    """The settings file, or arguments that take its place and never change."""
    listen: Address | None = None
    """Replaces the file's `listen`."""
    workers: str | None = None
    """Where the workers are; for a manifest, which does not say it."""

    def read(self) -> Settings:
        """Read the settings. Raises SettingsError; ValueError if `listen` does not fit them."""
        return self.take().settings

    def take(self) -> Loaded:
        """Read the settings and the notes on a manifest's fields. Raises the same as `read`."""
        if isinstance(self.file, Arguments):
            return Loaded(self.file.settings(), ())
        settings, notes = take(self.file, self.workers)
        return Loaded(settings.listening_on(self.listen) if self.listen else settings, notes)

    def files(self, settings: Settings) -> list[Path]:
        """Return what to watch: the file itself, TLS certificates and keys, and chat templates."""
        pools, door, named = settings.all_pools(), settings.tls, set[Path | None]()
        if door is not None:
            named |= {door.certificate, door.key, door.client_ca}
        for pool in pools:
            named |= {pool.tokenizer.chat_template} if pool.tokenizer else set()
            for tls in (worker.tls for worker in pool.workers if worker.tls):
                named |= {tls.ca, tls.certificate, tls.key}
        return [*self.own_files, *sorted(path for path in named if path)]

    @property
    def own_files(self) -> list[Path]:
        """The settings file, if there is one."""
        return [] if isinstance(self.file, Arguments) else [self.file]


class Reload:
    """Keeps the settings in effect equal to those of the file."""

    def __init__(
        self,
        source: Source,
        watch: Watch,
        settings: Settings,
        notes: Sequence[Note] = (),
        *,
        poll_interval_s: float = POLL_INTERVAL_S,
    ) -> None:
        self.settings = settings
        """The settings in effect."""
        self._since = time()
        self._whole = True
        """Whether everything that was read last is in effect."""
        self._source = source
        self._watch = watch
        self._notes = tuple(notes)
        self._poll_interval_s = poll_interval_s
        self._idle: tuple[str, ...] = ()
        self._certificate: Validity | None = None
        self._asked = asyncio.Event()
        watch.follow(source.files(settings))

    def now(self) -> None:
        """Reload even if the file looks unchanged: files that it names may have changed."""
        self._asked.set()

    def metrics(self) -> Iterator[Metric]:
        """Yield metrics on whether the settings in effect are those of the file."""
        yield GaugeMetricFamily(
            "warmroute_settings_in_effect",
            "1 if all of the settings, as they were last read, are in effect; 0 if they were"
            " refused, or some wait for a restart.",
            float(self._whole),
        )
        yield GaugeMetricFamily(
            "warmroute_settings_timestamp_seconds",
            "When the settings in effect were read, since 1970.",
            self._since,
        )
        if self._certificate is not None:
            yield GaugeMetricFamily(
                "warmroute_tls_certificate_expires_timestamp_seconds",
                "When the certificate that clients are shown expires, since 1970.",
                self._certificate.ends,
            )

    def look_at_certificate(self) -> None:
        """Note until when the door's certificate is valid, and warn if it is not now."""
        door = self.settings.tls
        self._certificate = validity(door.certificate) if door is not None else None
        if door is not None and (words := complaint(door.certificate, time())):
            log.warning("%s", words)

    def warn_unused(self) -> None:
        """Warn of settings that have no effect, as they stand now."""
        unused = tuple(idle(self.settings))
        for words in unused if unused != self._idle else ():
            log.warning("%s", words)
        self._idle = unused

    def log_pools(self) -> None:
        """Log how workers are chosen, where answers say it, and how to get to a file."""
        for pool in self.settings.all_pools():
            many = "" if len(pool.workers) == 1 else "s"
            details = pool.name, pool.strategy.name, len(pool.workers), many
            log.info("pool %s: strategy %s, %d worker%s", *details)
        headers = "x-warmroute-worker, x-warmroute-decision"
        log.info("each answer says which worker gave it, and why: %s", headers)
        if isinstance(self._source.file, Arguments):
            words = self._source.file.words()
            log.info(
                "for more settings, this prints a file to start from: warmroute check %s", words
            )

    def log_manifest_notes(self) -> None:
        """Log which fields of a manifest have no effect, and which are not for the router."""
        for note in self._notes:
            if note.fate is FieldOutcome.LOST:
                log.warning("manifest: %s", note)
        if others := [note.field for note in self._notes if note.fate is FieldOutcome.ELSEWHERE]:
            log.info("manifest: not for the router: %s", ", ".join(others))

    async def run(self, change: Change) -> None:
        """Watch and reload until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._poll_interval_s):
                    await self._asked.wait()
            if self._asked.is_set():
                self._asked.clear()
                self._watch.take_note()
            elif not self._watch.changed():
                continue
            try:
                self._whole = await self._again(change)
            except Exception:
                self._whole = False
                log.exception("internal error; the settings in use are kept")

    async def _again(self, change: Change) -> bool:
        """Read and apply the settings; return whether all of them could be applied."""
        read_at = time()
        try:
            read, notes = await asyncio.to_thread(self._source.take)
            self._watch.follow([*self._source.files(self.settings), *self._source.files(read)])
            # In threads, as listing what is different takes long in a large fleet.
            possible = await asyncio.to_thread(without_restart, self.settings, read)
            await change(possible)
        except SettingsError as error:
            # Once one of these is right, the settings may be so too.
            self._watch.follow(self._source.files(self.settings), error.files)
            for problem in error.problems:
                log.error("%s", problem)
            log.error("the file has the mistakes above; the settings in use are kept")
            return False
        except (ValueError, CannotBuild) as error:
            log.error("%s; the settings in use are kept", error)
            return False
        before, self.settings, self._since = self.settings, possible, read_at
        if notes != self._notes:
            self._notes = notes
            self.log_manifest_notes()
        self.warn_unused()
        self.look_at_certificate()
        self._watch.follow(self._source.files(possible))
        for sentence in await asyncio.to_thread(tell, before, possible, read):
            level = logging.WARNING if sentence.endswith(WAITS) else logging.INFO
            log.log(level, "settings: %s", sentence)
        return possible == read


def without_restart(old: Settings, new: Settings) -> Settings:
    """Return `new`, but keep the old values of what needs a restart.

    If anything does, access rules keep their old values too: the new ones were written for the new
    addresses, and could open the old ones to everyone.
    """
    if not needs_restart(old, new):
        return new
    tls = old.tls
    if old.tls and new.tls:
        tls = new.tls.model_copy(update={"client_ca": old.tls.client_ca})
    stays = {"listen": old.listen, "tls": tls, "auth": old.auth, "admin": old.admin}
    return new.model_copy(update=stays)


def tell(before: Settings, after: Settings, read: Settings) -> list[str]:
    """List what has changed, and what was read but waits for a restart."""
    done = changes(before, after)
    waiting = [change for change in changes(before, read) if change not in done]
    return [*done, *(change.removesuffix(WAITS) + WAITS for change in waiting)] or ["no changes"]


def check_multiprocess(settings: Settings) -> None:
    """Raise CannotBuild if any of the settings needs a single process."""
    _refuse_split_sessions(settings)
    _refuse_engines_that_dial_in(settings)


def _refuse_split_sessions(settings: Settings) -> None:
    """Refuse sessions without Redis: a session in one process would be unknown to the others."""
    if settings.session.redis is not None:
        return
    for pool in settings.all_pools():
        if registry.make(pool.strategy.name, pool.strategy.options).capabilities.keeps_sessions:
            raise CannotBuild(
                f"pool {pool.name}: several processes need one place for their sessions: give"
                " session.redis, or serve by one process"
            )


def _refuse_engines_that_dial_in(settings: Settings) -> None:
    """Refuse engines that connect to us: only one process can bind the port they connect to."""
    if settings.controller is not None:
        return
    for pool in settings.all_pools():
        for worker in pool.workers:
            if worker.kv_events is not None and binds(worker.kv_events):
                raise CannotBuild(
                    f"pool {pool.name}: worker {worker.name}: several processes cannot hear an"
                    f" engine that dials in at {worker.kv_events}: give the engine's own address,"
                    " or a controller, or serve by one process"
                )
