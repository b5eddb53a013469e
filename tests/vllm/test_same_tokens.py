"""Requests of all kinds: the router's tokens are the engine's.

`WARMROUTE_VLLM_CASES` is the number of conversations compared in all, by default 2,000.
"""

import os
import sysconfig
from pathlib import Path

import pytest

from router.tokenizers.loader import TokenizerCache
from tests.rendering.families import FAMILIES, train
from tests.vllm.comparing import CHAT, COMPLETION, chat, compare, tokenize
from tests.vllm.conftest import StartEngine
from tests.vllm.conversations import chats, completions, orderly
from tests.vllm.engine import make_model

CASES = int(os.environ.get("WARMROUTE_VLLM_CASES", "2000"))
#: The four kinds of templates: ChatML, headers, `[INST]`, and tools with reasoning.
FOUR = ("chatml", "llama", "mistral", "qwen")
TOOLS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
#: Cases that take longer, or differ less from each other.
_FEW = max(1, CASES // 40)


@pytest.mark.parametrize("name", FOUR)
def test_conversations(
    vllm: StartEngine, tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    """A quarter of the cases each; a few of them as chats that are actually answered."""
    folder = tmp_path_factory.mktemp(name)
    make_model(folder, name, train(FAMILIES[name], _texts(), 6000))
    engine, exact = vllm(folder, *TOOLS), TokenizerCache().open(folder).exact
    bodies = orderly() if name == "mistral" else chats
    print()
    print(name, compare(engine, exact, CHAT, bodies, cases=CASES // 4, ask=tokenize))
    print(name, compare(engine, exact, CHAT, bodies, cases=_FEW, ask=chat))
    print(name, compare(engine, exact, COMPLETION, completions, cases=_FEW, ask=tokenize))


def _texts() -> list[str]:
    """Return the text on which vocabularies are trained: Python's own library."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:40]
    return [file.read_text(encoding="utf-8", errors="replace") for file in files]
