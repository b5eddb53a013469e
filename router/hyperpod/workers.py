"""Where the workers are: a manifest does not say, since HyperPod's operator starts them."""

import os
import re
from collections.abc import Iterator

from router.hyperpod.reading import SPEC, Reading
from router.settings.errors import KeyPath, Problem
from router.settings.types import parse_url

ANNOTATION = "warmroute.io/workers"
OPTION = "--workers"
VARIABLE = "WARMROUTE_WORKERS"
#: Placeholder for 0, 1, 2… up to the number of replicas minus one.
REPLICA = "{replica}"
#: Most replicas in one file.
MOST = 4096
_AT: KeyPath = ("metadata", "annotations", ANNOTATION)
_REPLICAS: KeyPath = (*SPEC, "replicas")
_PORT: KeyPath = (*SPEC, "worker", "modelInvocationPort")
_NUMBER: KeyPath = (*_PORT, "containerPort")


def place_workers(reading: Reading, told: str | None, own: int | None) -> int:
    """Set `workers` from what the operator `told`, or from the annotation; return their number.

    `own`: the number given in our own settings within the manifest; 0 if not known.
    """
    if told and not given(told):
        _refuse(reading, told, "names no worker: give URLs, separated by commas")
    reading.mapping((*SPEC, "worker"))
    replicas = reading.whole(_REPLICAS, 0, MOST, None)
    port = reading.whole(_NUMBER, 1, 65535, None)
    if reading.choice((*_PORT, "name"), ("http", "grpc"), "http") == "grpc":
        reading.lost((*_PORT, "name"), "workers are spoken to by HTTP")
    text = told or given(reading.text(_AT))
    urls = _read(reading, told, text, replicas or 1, port) if text else []
    if urls:
        reading.set(("workers",), urls, _AT)
    elif not text and own is None:
        message = (
            f"does not say where the workers are: give {OPTION} ({VARIABLE}), or the"
            f" annotation {ANNOTATION}, such as http://llama-{REPLICA}.llama:8000"
        )
        reading.refuse(("metadata",), message)
    count = len(urls) if told else own or len(urls)
    if count:
        _note(reading, told, count, replicas)
        if told or not own:
            reading.mapped(_NUMBER, "port of workers that are given without one")
        reading.elsewhere(_NUMBER, "the URLs of workers have their own")
    return count or replicas or 1


def _read(
    reading: Reading, told: str | None, text: str, replicas: int, port: int | None
) -> list[str]:
    urls = []
    for url in addresses(text, replicas, port):
        try:
            urls.append(parse_url(url))
        except ValueError as error:
            _refuse(reading, told, str(error))
    return urls


def addresses(text: str, replicas: int, port: int | None) -> Iterator[str]:
    """Yield a URL for each worker of a list separated by commas or spaces.

    `http://` may be left out; `port` is added to those without one.
    """
    for entry in filter(None, re.split(r"[,\s]+", text)):
        url = entry if "://" in entry else f"http://{entry}"
        url = url.removesuffix("/")
        if port is not None and re.search(r"(:[0-9]+|[^/]/.*)$", url.partition("://")[2]) is None:
            url = f"{url}:{port}"
        if REPLICA not in url:
            yield url
        else:
            yield from (url.replace(REPLICA, str(number)) for number in range(replicas))


def given(text: str | None) -> str | None:
    """Return a list as it is; None if it names nobody."""
    return text if text and re.search(r"[^,\s]", text) else None


def said_by(told: str) -> str:
    """Return what the operator has told it by: the option, or its variable in the environment."""
    return VARIABLE if os.environ.get(VARIABLE) == told else OPTION


def _refuse(reading: Reading, told: str | None, message: str) -> None:
    if told:
        reading.problems.append(Problem(said_by(told), None, None, "", message))
    else:
        reading.refuse(_AT, message)


def _note(reading: Reading, told: str | None, count: int, replicas: int | None) -> None:
    workers = "1 worker" if count == 1 else f"{count} workers"
    if told:
        reading.elsewhere(_AT, f"{said_by(told)} takes its place: {workers}")
    else:
        reading.mapped(_AT, f"workers: {workers}")
    if replicas not in {None, count}:
        reading.lost(_REPLICAS, f"{workers} given, and used")
    else:
        reading.mapped(_REPLICAS, f"workers: {workers}")
    reading.mapped((*_PORT, "name"), "workers are spoken to by HTTP")
