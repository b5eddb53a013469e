"""How LMCache in the workers' engines names its chunks in Redis, as far as a manifest says.

Its variables are in `lmcache/v1/config.py`; for what names are made of see
`router/kv/lmcache/names.py`.
"""

from collections.abc import Mapping
from math import prod
from pathlib import PurePath
from typing import get_args

from router.hyperpod.fields import SPEC, Reading, decimal
from router.settings.errors import KeyPath
from router.settings.fleet import MAX_PYTHONHASHSEED, Hash

#: The settings set from this.
LMCACHE: KeyPath = ("tiers", "l2", "lmcache")
_ENVIRONMENT: KeyPath = (*SPEC, "worker", "environmentVariables")
_ARGS: KeyPath = (*SPEC, "worker", "args")
_COMMAND: KeyPath = (*SPEC, "worker", "command")
_SEED = "PYTHONHASHSEED"
_CHUNK = "LMCACHE_CHUNK_SIZE"
_HASH = "LMCACHE_PRE_CACHING_HASH_ALGORITHM"
_FILE = "LMCACHE_CONFIG_FILE"
_SIZES = (("--tensor-parallel-size", "-tp"), ("--pipeline-parallel-size", "-pp"))
#: Values of vLLM's flags, with LMCache's names for them (`lmcache/utils.py`).
_TYPES = {
    "bfloat16": "bfloat16",
    "half": "half",
    "float16": "half",
    "float": "float",
    "float32": "float",
}
_AUTO = "auto"
#: Flags of a shell or of Python: the word before them is not a model.
_PROGRAMS = frozenset(("-c", "-lc", "-m"))


class Naming:
    """What is known of the names, and what is missing."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._variables = _variables(reading)
        self._flags = _flags(reading)
        self.settings: dict[str, object] = {"names": "engine"}
        """Settings below `tiers.l2.lmcache`."""
        self.lacking: list[str] = []
        """What the manifest would have to say as well; empty if nothing is missing."""
        self._used: dict[str, KeyPath] = {}
        if _FILE in self._variables:
            self.lacking.append(f"what stands in the file {_FILE}")
        self._hash()
        self._chunk()
        self._model()
        self._gpus()
        self._dtype()

    def note(self) -> None:
        """Note the variables that were used; values are not shown."""
        for setting, path in self._used.items():
            name = next(name for name, (place, _) in self._variables.items() if place == path)
            self._reading.sources.append((LMCACHE, path))
            self._reading.mapped(path, f"tiers.l2.lmcache.{setting}", f"{name}=***")

    def _take(self, setting: str, variable: str, value: object) -> None:
        self.settings[setting] = value
        self._used[setting] = self._variables[variable][0]

    def _hash(self) -> None:
        function, seed = self._value(_HASH), self._value(_SEED)
        if function in get_args(Hash):
            self._take("hash", _HASH, function)
        elif _HASH in self._variables:
            self.lacking.append(f"{_HASH}, {' or '.join(get_args(Hash))}")
        if decimal(seed, MAX_PYTHONHASHSEED) is not None:
            self._take("seed", _SEED, seed)
        elif _SEED in self._variables or function in {None, "builtin"}:
            self.lacking.append(f"{_SEED}, a number")

    def _chunk(self) -> None:
        value = decimal(self._value(_CHUNK))
        if value is not None:
            self._take("chunk", _CHUNK, value)
        elif _CHUNK in self._variables:
            self.lacking.append(f"{_CHUNK}, a number")

    def _model(self) -> None:
        first = "" if _PROGRAMS & self._flags.keys() else self._flags.get("", "")
        model = self._flags.get("--model") or first
        if model and not any(map(str.isspace, model)):
            self.settings["model"] = model
        else:
            self.lacking.append("the model in worker.args")

    def _gpus(self) -> None:
        values = [self._flags.get(long, self._flags.get(short)) for long, short in _SIZES]
        sizes = [size for value in values if (size := decimal(value)) is not None]
        if sizes:
            self.settings["gpus"] = prod(sizes)
        if len(sizes) < len(values) - values.count(None):
            self.lacking.append("numbers of GPUs in worker.args")

    def _dtype(self) -> None:
        kept, computed = (self._flags.get(flag, _AUTO) for flag in ("--kv-cache-dtype", "--dtype"))
        dtype = computed if kept == _AUTO else kept
        if dtype in _TYPES:
            self.settings["dtype"] = _TYPES[dtype]
        elif dtype != _AUTO:
            self.lacking.append("LMCache's word for the KV cache's type")

    def _value(self, name: str) -> str | None:
        return self._variables[name][1] if name in self._variables else None


def _variables(reading: Reading) -> dict[str, tuple[KeyPath, str | None]]:
    """Return each variable's place, and its value if given literally; of duplicates the last
    counts."""
    variables: dict[str, tuple[KeyPath, str | None]] = {}
    for number, variable in enumerate(reading.items(_ENVIRONMENT)):
        if isinstance(variable, Mapping):
            value = variable.get("value")
            text = value if isinstance(value, str) else None
            variables[str(variable.get("name"))] = (*_ENVIRONMENT, number), text
    return variables


def _flags(reading: Reading) -> dict[str, str]:
    """Return the value of each flag, the last of duplicates.

    Under an empty name is the first word, if the command is vLLM's own or none is given.
    """
    command = [str(word) for word in reading.items(_COMMAND)]
    words = [*command, *map(str, reading.items(_ARGS))]
    own = [PurePath(word).name for word in words[:1]] == ["vllm"]
    flags: dict[str, str] = {}
    name = "" if own or not command else command[0]
    for word in words[1:] if own else words:
        if word.startswith("-"):
            name, _, value = word.partition("=")
            name = name.replace("_", "-")
            flags[name] = value
        elif word != "serve" and not flags.get(name):  # `vllm serve MODEL`
            flags[name] = word
    return flags
