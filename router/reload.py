"""Reloads the settings while the router runs.

On a signal, or when the file has changed, the settings are read again. They are applied as a whole,
or refused as a whole with every problem in the log. What needs a restart stays as it was, and the
log says so.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import time

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from router.diff import WAITS, changes, needs_restart
from router.fleet.build import CannotBuild
from router.http.certificate import Validity, complaint, validity
from router.hyperpod.notes import Fate, Note
from router.idle import idle
from router.settings import loader as settings_file
from router.settings.address import Address
from router.settings.arguments import Arguments
from router.settings.errors import SettingsError
from router.settings.loader import Loaded
from router.settings.model import Settings
from router.settings.watch import Watch

log = logging.getLogger("warmroute.reload")

#: Seconds between two polls of the file.
LOOK_S = 1.0

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
        settings, notes = settings_file.take(self.file, self.workers)
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
        self, source: Source, watch: Watch, settings: Settings, notes: Sequence[Note] = ()
    ) -> None:
        self.settings = settings
        """The settings in effect."""
        self._since = time()
        self._whole = True
        """Whether everything that was read last is in effect."""
        self._source = source
        self._watch = watch
        self._notes = tuple(notes)
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

    def say_what_is_idle(self) -> None:
        """Warn of settings that have no effect, as they stand now."""
        found = tuple(idle(self.settings))
        for words in found if found != self._idle else ():
            log.warning("%s", words)
        self._idle = found

    def say_what_is_served(self) -> None:
        """Log how workers are chosen, where answers say it, and how to get to a file."""
        for pool in self.settings.all_pools():
            many = "" if len(pool.workers) == 1 else "s"
            told = pool.name, pool.strategy.name, len(pool.workers), many
            log.info("pool %s: strategy %s, %d worker%s", *told)
        headers = "x-warmroute-worker, x-warmroute-decision"
        log.info("each answer says which worker gave it, and why: %s", headers)
        if isinstance(self._source.file, Arguments):
            words = self._source.file.words()
            log.info(
                "for more settings, this prints a file to start from: warmroute check %s", words
            )

    def say_what_is_lost(self) -> None:
        """Log which fields of a manifest have no effect, and which are not for the router."""
        for note in self._notes:
            if note.fate is Fate.LOST:
                log.warning("manifest: %s", note)
        if others := [note.field for note in self._notes if note.fate is Fate.ELSEWHERE]:
            log.info("manifest: not for the router: %s", ", ".join(others))

    async def run(self, change: Change) -> None:
        """Watch and reload until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
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
            self.say_what_is_lost()
        self.say_what_is_idle()
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
    waiting = [one for one in changes(before, read) if one not in done]
    return [*done, *(one.removesuffix(WAITS) + WAITS for one in waiting)] or ["no changes"]
