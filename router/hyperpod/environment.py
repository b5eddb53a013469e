"""What a manifest tells of the workers: their environment, their arguments, and where they are.

A manifest itself does not say where, since HyperPod's operator starts them: its annotation, the
command line or the environment does.
"""

import os
import re
from collections.abc import Iterator, Mapping
from typing import cast

from router.hyperpod.fields import SPEC, Reading, decimal
from router.hyperpod.routing import name_session
from router.runtime.quote import shown
from router.settings.errors import KeyPath, Problem
from router.settings.types import parse_url

_WORKER: KeyPath = (*SPEC, "worker")
_ENVIRONMENT: KeyPath = (*_WORKER, "environmentVariables")
_ARGS: KeyPath = (*_WORKER, "args")
_ENGINE = "for the engine alone"
#: Variables with a session's lifetime, in AWS's containers, and their unit.
_LASTING = {"SAGEMAKER_SESSIONS_EXPIRATION": "s", "SES_TTL_MIN": "m"}
#: Flags of vLLM that change a prompt's tokens.
_TOKENS = (
    "--tokenizer",
    "--tokenizer-mode",
    "--chat-template",
    "--default-chat-template-kwargs",
)
#: The flag of vLLM without which workers send no KV events.
_EVENTS = "--kv-events-config"
#: Variable set in containers that keep sessions themselves.
_STATEFUL = "SAGEMAKER_ENABLE_STATEFUL_SESSIONS"


def read_environment(reading: Reading, strategy: str) -> None:
    """Read every variable, and the arguments."""
    stateful = _keeps_sessions(reading)
    for number, item in enumerate(reading.items(_ENVIRONMENT)):
        path = (*_ENVIRONMENT, number)
        if not isinstance(item, Mapping) or not isinstance(item.get("name"), str):
            reading.refuse(path, "must be a mapping with a name")
            continue
        variable = cast("Mapping[str, object]", item)
        name, value = str(variable["name"]), variable.get("value")
        text = value if isinstance(value, str) else None
        if name == "SESSION_KEY":
            name_session(reading, path, strategy, text, moves=not stateful)
        elif name in _LASTING:
            _lasting(reading, path, name, text)
        elif name == _STATEFUL:
            _stateful(reading, path, stateful)
        elif name == "VLLM_API_KEY":
            _key(reading, path)
        else:
            reading.elsewhere(path, _ENGINE, f"{shown(name)[1:-1]}=***")
    _read_args(reading, strategy)


def _lasting(reading: Reading, path: KeyPath, name: str, text: str | None) -> None:
    if not decimal(text):
        reading.lost(path, "not a whole number that is written here", f"{name}=***")
    else:
        ttl = f"{text}{_LASTING[name]}"
        reading.set(("session", "ttl"), ttl, path)
        reading.mapped(path, f"session.ttl: {ttl}", f"{name}={text}")


def _keeps_sessions(reading: Reading) -> bool:
    """Whether the workers keep sessions; of duplicate variables the last counts, as in a
    container."""
    values = [
        variable.get("value")
        for variable in reading.items(_ENVIRONMENT)
        if isinstance(variable, Mapping) and variable.get("name") == _STATEFUL
    ]
    return bool(values) and str(values[-1]).lower() in {"true", "1"}


def _stateful(reading: Reading, path: KeyPath, wanted: bool) -> None:
    value = f"{_STATEFUL}={str(wanted).lower()}"
    if wanted:
        reading.set_each("stateful", True, path)
        reading.mapped(path, "workers[].stateful: true", value)
    else:
        reading.mapped(path, "workers keep no sessions", value)


def _key(reading: Reading, path: KeyPath) -> None:
    """Set the workers' API key, as a reference to the router's own variable, if that is set."""
    value = "VLLM_API_KEY=***"
    if "VLLM_API_KEY" in os.environ:
        reading.set_each("api_key", "${VLLM_API_KEY}", path)
        reading.mapped(path, "workers[].api_key: ${VLLM_API_KEY}", value)
    else:
        reading.lost(path, "set VLLM_API_KEY for the router too, or clients have to send it", value)


def _read_args(reading: Reading, strategy: str) -> None:
    """Note the engine's arguments that have to be repeated here. None is ever shown."""
    flags = {str(argument).partition("=")[0] for argument in reading.items(_ARGS)}
    remarks = []
    if known := flags.intersection(_TOKENS):
        remarks.append(f"say {', '.join(sorted(known))} here too, as `tokenizer`")
    if "--api-key" in flags:
        remarks.append("clients have to send what --api-key says")
    if strategy == "kvaware" and _EVENTS not in flags:
        remarks.append(f"without {_EVENTS} kvaware goes by what was sent")
    if remarks:
        value = "not given" if reading.get(_ARGS) is None else None
        reading.lost(_ARGS, "; ".join((_ENGINE, *remarks)), value)
    else:
        reading.elsewhere(_ARGS, _ENGINE)


ANNOTATION = "warmroute.io/workers"
OPTION = "--workers"
VARIABLE = "WARMROUTE_WORKERS"
#: Placeholder for 0, 1, 2… up to the number of replicas minus one.
REPLICA = "{replica}"
MAX_REPLICAS = 4096
_AT: KeyPath = ("metadata", "annotations", ANNOTATION)
_REPLICAS: KeyPath = (*SPEC, "replicas")
_PORT: KeyPath = (*SPEC, "worker", "modelInvocationPort")
_NUMBER: KeyPath = (*_PORT, "containerPort")


def place_workers(reading: Reading, option: str | None, own: int | None) -> int:
    """Set `workers` and return their number.

    `option`: the list on the command line, in place of the annotation's. `own`: the number given in
    our own settings within the manifest; 0 if not known.
    """
    if option and not given(option):
        _refuse(reading, option, "names no worker: give URLs, separated by commas")
    reading.mapping((*SPEC, "worker"))
    replicas = reading.whole(_REPLICAS, 0, MAX_REPLICAS, None)
    port = reading.whole(_NUMBER, 1, 65535, None)
    if reading.choice((*_PORT, "name"), ("http", "grpc"), "http") == "grpc":
        reading.lost((*_PORT, "name"), "workers are spoken to by HTTP")
    text = option or given(reading.text(_AT))
    urls = _read(reading, option, text, replicas or 1, port) if text else []
    if urls:
        reading.set(("workers",), urls, _AT)
    elif not text and own is None:
        message = (
            f"does not say where the workers are: give {OPTION} ({VARIABLE}), or the"
            f" annotation {ANNOTATION}, such as http://llama-{REPLICA}.llama:8000"
        )
        reading.refuse(("metadata",), message)
    count = len(urls) if option else own or len(urls)
    if count:
        _note(reading, option, count, replicas)
        if option or not own:
            reading.mapped(_NUMBER, "port of workers that are given without one")
        reading.elsewhere(_NUMBER, "the URLs of workers have their own")
    return count or replicas or 1


def _read(
    reading: Reading, option: str | None, text: str, replicas: int, port: int | None
) -> list[str]:
    urls = []
    for url in addresses(text, replicas, port):
        try:
            urls.append(parse_url(url))
        except ValueError as error:
            _refuse(reading, option, str(error))
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


def source_of(option: str) -> str:
    """Return what gave these workers: the option, or its variable in the environment."""
    return VARIABLE if os.environ.get(VARIABLE) == option else OPTION


def _refuse(reading: Reading, option: str | None, message: str) -> None:
    if option:
        reading.problems.append(Problem(source_of(option), None, None, "", message))
    else:
        reading.refuse(_AT, message)


def _note(reading: Reading, option: str | None, count: int, replicas: int | None) -> None:
    workers = "1 worker" if count == 1 else f"{count} workers"
    if option:
        reading.elsewhere(_AT, f"{source_of(option)} takes its place: {workers}")
    else:
        reading.mapped(_AT, f"workers: {workers}")
    if replicas not in {None, count}:
        reading.lost(_REPLICAS, f"{workers} given, and used")
    else:
        reading.mapped(_REPLICAS, f"workers: {workers}")
    reading.mapped((*_PORT, "name"), "workers are spoken to by HTTP")
