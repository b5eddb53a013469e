"""The workers' environment and arguments, where they matter to the router too."""

from collections.abc import Mapping
from typing import cast

from router.hyperpod.reading import SPEC, Reading, decimal
from router.hyperpod.routing import name_session
from router.runtime.quoting import shown
from router.settings.errors import KeyPath

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
    elif "session" not in reading.able.sections:
        reading.lost(path, "there are no sessions", f"{name}={text}")
    else:
        ttl = f"{text}{_LASTING[name]}"
        reading.set(("session", "ttl"), ttl, path)
        reading.mapped(path, f"session.ttl: {ttl}", f"{name}={text}")


def _keeps_sessions(reading: Reading) -> bool:
    """Whether the workers keep sessions; of duplicate variables the last counts, as in a
    container."""
    said = [
        one.get("value")
        for one in reading.items(_ENVIRONMENT)
        if isinstance(one, Mapping) and one.get("name") == _STATEFUL
    ]
    return bool(said) and str(said[-1]).lower() in {"true", "1"}


def _stateful(reading: Reading, path: KeyPath, wanted: bool) -> None:
    said = f"{_STATEFUL}={str(wanted).lower()}"
    if wanted and "stateful" in reading.able.worker:
        reading.set_each("stateful", True, path)
        reading.mapped(path, "workers[].stateful: true", said)
    elif wanted:
        reading.lost(path, "workers' own sessions are not known here", said)
    else:
        reading.mapped(path, "workers keep no sessions", said)


def _key(reading: Reading, path: KeyPath) -> None:
    """Set the workers' API key, as a reference to the router's own variable, if that is set."""
    said = "VLLM_API_KEY=***"
    if "VLLM_API_KEY" in reading.able.environment:
        reading.set_each("api_key", "${VLLM_API_KEY}", path)
        reading.mapped(path, "workers[].api_key: ${VLLM_API_KEY}", said)
    else:
        reading.lost(path, "set VLLM_API_KEY for the router too, or clients have to send it", said)


def _read_args(reading: Reading, strategy: str) -> None:
    """Note the engine's arguments that have to be repeated here. None is ever shown."""
    flags = {str(one).partition("=")[0] for one in reading.items(_ARGS)}
    said = []
    if known := flags.intersection(_TOKENS):
        said.append(f"say {', '.join(sorted(known))} here too, as `tokenizer`")
    if "--api-key" in flags:
        said.append("clients have to send what --api-key says")
    if strategy == "kvaware" and _EVENTS not in flags:
        said.append(f"without {_EVENTS} kvaware goes by what was sent")
    if said:
        value = "not given" if reading.get(_ARGS) is None else None
        reading.lost(_ARGS, "; ".join((_ENGINE, *said)), value)
    else:
        reading.elsewhere(_ARGS, _ENGINE)
