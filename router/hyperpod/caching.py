"""`kvCacheSpec`: cache tiers beyond the GPU. Mistakes in it are reported at startup."""

import re

from router.hyperpod.lmcache import LMCACHE, Naming
from router.hyperpod.reading import SPEC, Reading
from router.runtime.quoting import shown
from router.settings.errors import KeyPath, nearest
from router.settings.sessions import REDIS_PATTERN

BACKENDS = ("redis", "tieredstorage")
_CACHE: KeyPath = (*SPEC, "kvCacheSpec")
_FILE: KeyPath = (*_CACHE, "cacheConfigFile")
_L1: KeyPath = (*_CACHE, "enableL1Cache")
_L2: KeyPath = (*_CACHE, "enableL2Cache")
_STORE: KeyPath = (*_CACHE, "l2CacheSpec")
_BACKEND: KeyPath = (*_STORE, "l2CacheBackend")
_URL: KeyPath = (*_STORE, "l2CacheLocalUrl")
_ENGINE = "the engine's to do; the router does not count this tier"
_TOLD = "the engine's to do; kvaware counts what workers' events tell of it"
_ASKED = "the engine's to do; kvaware asks that Redis what lies there"
_KEPT = _ASKED + "; tiers.l2.promotes: l1"
_UNTOLD = "the engine's to do; tiers.l2.lmcache in the annotation says how LMCache names its chunks"


def check_cache(reading: Reading, strategy: str, ours: str | None) -> None:
    """Check the tiers, and note that engines have to be configured separately.

    LMCache includes the host's memory in its engine's KV events, but no store. So a Redis is asked,
    if the manifest says how its chunks are named. `ours`: the place in our own settings that says
    so instead.
    """
    reading.mapping(_CACHE)
    if reading.text(_FILE):
        reading.lost(_FILE, "LMCache's own file, which the router does not read")
        for path in (_L1, _L2, _STORE):
            reading.elsewhere(path, "cacheConfigFile takes its place")
        return
    first = reading.truth(_L1, default=True)
    second = reading.truth(_L2, default=False)
    listens = strategy == "kvaware"
    if listens and reading.get(_CACHE) is not None:
        reading.set(("tiers", "l1", "enabled"), first, _L1)
        reading.set(("tiers", "l2", "enabled"), second, _L2)
    if first and listens:
        reading.mapped(_L1, _TOLD)
    else:
        _tell(reading, _L1, _ENGINE, on=first)
    if reading.mapping(_STORE):
        url = _check_store(reading)
        if ours and second and listens:
            for path in (_L2, _BACKEND, _URL):
                reading.elsewhere(path, f"{ours} says what is asked")
        elif url and second and listens:
            _ask(reading, url, keeps=first)
    elif second:
        reading.refuse(_L2, "needs l2CacheSpec, with l2CacheBackend redis or tieredstorage")
    away = _UNTOLD if listens else _ENGINE
    _tell(reading, _L2, away, on=second)
    (reading.lost if second else reading.elsewhere)(
        _BACKEND, away if second else "enableL2Cache is not on"
    )
    reading.elsewhere(_URL, "for the engine alone")


def _ask(reading: Reading, url: str, *, keeps: bool) -> None:
    """Have the router ask that Redis, if it is known how its keys are made.

    `keeps`: there is an L1, in which LMCache in the engine keeps what it loads from L2.
    """
    naming = Naming(reading)
    if not re.fullmatch(REDIS_PATTERN, url):
        naming.lacking.append("a URL of host and port alone, tiers.l2.lmcache.password if need be")
    if naming.lacking:
        lacks = "; ".join(naming.lacking)
        reading.lost(_URL, f"the router cannot ask it without {lacks}")
        return
    reading.set(LMCACHE, {"redis": url, **naming.settings}, _URL)
    if keeps:
        reading.set(("tiers", "l2", "promotes"), "l1", _L2)
    naming.note()
    reading.mapped(_URL, "tiers.l2.lmcache.redis, names as in the engine")
    reading.mapped(_L2, _KEPT if keeps else _ASKED)
    reading.mapped(_BACKEND, "tiers.l2.lmcache")


def _tell(reading: Reading, path: KeyPath, why: str, *, on: bool) -> None:
    if on:
        reading.lost(path, why)
    else:
        tier = "l1" if path == _L1 else "l2"
        reading.mapped(path, f"tiers.{tier}.enabled: false, and nothing counts it")


def _check_store(reading: Reading) -> str | None:
    """Check `l2CacheSpec`, report mistakes, and return the URL if it is a Redis."""
    backend, url = reading.text(_BACKEND), reading.text(_URL)
    if backend is None:
        reading.refuse(_BACKEND, f"is needed: {' or '.join(BACKENDS)}")
        return None
    word = backend.lower()  # HyperPod ignores case
    if word not in BACKENDS:
        message = f"{shown(backend)} is not one of {', '.join(BACKENDS)}"
        reading.refuse(_BACKEND, message, nearest(word, BACKENDS))
    if word != "redis":
        return None
    if url is None:
        reading.refuse(_URL, "is needed with redis: redis://host:port")
    elif not re.match(r"rediss?://[^/\s]+", url):
        reading.refuse(_URL, "is not the URL of a Redis: write redis://host:port")
    return url
