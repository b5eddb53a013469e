"""`kvCacheSpec`: what engines keep beyond the GPU. Mistakes in it are told at the start."""

import re

from router.hyperpod.reading import SPEC, Reading
from router.settings_errors import KeyPath, nearest
from router.units import shown

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
_UNTOLD = "the engine's to do; tiers.l2.lmcache in the annotation says how LMCache names its chunks"


def check_cache(reading: Reading, strategy: str) -> None:
    """Check what is said of tiers, and tell that engines have to be told themselves.

    LMCache puts what lies in the host's memory among its engine's events, and nothing of a store.
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
    away = _UNTOLD if listens else _ENGINE
    if first and listens:
        reading.mapped(_L1, _TOLD)
    else:
        _tell(reading, _L1, _ENGINE, on=first)
    _tell(reading, _L2, away, on=second)
    if reading.mapping(_STORE):
        _check_store(reading, away, on=second)
    elif second:
        reading.refuse(_L2, "needs l2CacheSpec, with l2CacheBackend redis or tieredstorage")


def _tell(reading: Reading, path: KeyPath, why: str, *, on: bool) -> None:
    if on:
        reading.lost(path, why)
    else:
        tier = "l1" if path == _L1 else "l2"
        reading.mapped(path, f"tiers.{tier}.enabled: false, and nothing counts it")


def _check_store(reading: Reading, lacking: str, *, on: bool) -> None:
    backend, url = reading.text(_BACKEND), reading.text(_URL)
    if backend is None:
        reading.refuse(_BACKEND, f"is needed: {' or '.join(BACKENDS)}")
        return
    word = backend.lower()  # HyperPod takes any case
    if word not in BACKENDS:
        message = f"{shown(backend)} is not one of {', '.join(BACKENDS)}"
        reading.refuse(_BACKEND, message, nearest(word, BACKENDS))
    elif word == "redis" and url is None:
        reading.refuse(_URL, "is needed with redis: redis://host:port")
    elif word == "redis" and url and not re.match(r"rediss?://[^/\s]+", url):
        reading.refuse(_URL, "is not the URL of a Redis: write redis://host:port")
    why = lacking if on else "enableL2Cache is not on"
    (reading.lost if on else reading.elsewhere)(_BACKEND, why)
    if url:
        value = re.sub(r"//[^@]*@", "//***@", url)  # a password may stand in it
        reading.elsewhere(_URL, "for the engine alone", shown(value))
