"""Requests of all kinds, and tokenizers in all formats: the router's tokens are the engine's.

`WARMROUTE_VLLM_CASES` is the number of conversations compared in all, by default 2,000.
"""

import json
import os
import sysconfig
from pathlib import Path

import pytest

from router.tokenizers.loader import TokenizerCache
from tests.rendering.families import FAMILIES, train
from tests.rendering.other_formats import KINDS, make_mistral, make_sentencepiece
from tests.vllm.comparing import CHAT, COMPLETION, chat, compare, tokenize
from tests.vllm.conftest import StartEngine
from tests.vllm.conversations import chats, completions, orderly
from tests.vllm.engine import config, make_model

CASES = int(os.environ.get("WARMROUTE_VLLM_CASES", "2000"))
#: The four kinds of templates: ChatML, headers, `[INST]`, and tools with reasoning.
FOUR = ("chatml", "llama", "mistral", "qwen")
TOOLS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
#: Cases that take longer, or differ less from each other.
_FEW = max(1, CASES // 40)
#: Each format takes an engine, so only a few cases of each.
_OF_FORMAT = max(1, CASES // 20)


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


@pytest.mark.parametrize("kind", KINDS)
def test_mistrals_format(vllm: StartEngine, tmp_path: Path, kind: str) -> None:
    """Tool calls are only compared in answered chats, as `/tokenize` refuses them."""
    pytest.importorskip("mistral_common")
    folder = make_mistral(tmp_path / kind, kind)
    size = 140_000 if (folder / "tekken.json").is_file() else 33_000
    (folder / "config.json").write_text(json.dumps(config(size)), encoding="utf-8")
    engine, volume = vllm(folder, "--tokenizer-mode", "mistral"), TokenizerCache().open(folder)
    assert volume.library == "mistral-common"
    print()
    print(kind, compare(engine, volume.exact, CHAT, orderly(), cases=_OF_FORMAT, ask=chat))
    print(kind, compare(engine, volume.exact, CHAT, orderly(), cases=_OF_FORMAT, ask=tokenize))
    print(
        kind, compare(engine, volume.exact, COMPLETION, completions, cases=_OF_FORMAT, ask=tokenize)
    )


def test_sentencepiece(vllm: StartEngine, tmp_path: Path) -> None:
    """Transformers converts it to the same in the router as in vLLM."""
    pytest.importorskip("transformers")
    folder = make_sentencepiece(tmp_path / "llama")
    (folder / "config.json").write_text(json.dumps(config(400)), encoding="utf-8")
    engine, exact = vllm(folder), TokenizerCache().open(folder).exact
    print()
    print(compare(engine, exact, CHAT, orderly(), cases=_OF_FORMAT, ask=tokenize))
    print(compare(engine, exact, COMPLETION, completions, cases=_OF_FORMAT, ask=tokenize))
