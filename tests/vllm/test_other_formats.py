"""Tokenizers in other formats than `tokenizer.json`: the router's tokens are the engine's."""

import json
from pathlib import Path

import pytest

from router.tokenizers.loader import TokenizerCache
from tests.rendering.other_formats import KINDS, make_mistral, make_sentencepiece
from tests.vllm.comparing import CHAT, COMPLETION, chat, compare, tokenize
from tests.vllm.conftest import StartEngine
from tests.vllm.conversations import completions, orderly
from tests.vllm.engine import config
from tests.vllm.test_same_tokens import CASES

#: Each kind takes an engine, so only a few cases of each.
_FEW = max(1, CASES // 20)


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
    print(kind, compare(engine, volume.exact, CHAT, orderly(), cases=_FEW, ask=chat))
    print(kind, compare(engine, volume.exact, CHAT, orderly(), cases=_FEW, ask=tokenize))
    print(kind, compare(engine, volume.exact, COMPLETION, completions, cases=_FEW, ask=tokenize))


def test_sentencepiece(vllm: StartEngine, tmp_path: Path) -> None:
    """Transformers converts it to the same in the router as in vLLM."""
    pytest.importorskip("transformers")
    folder = make_sentencepiece(tmp_path / "llama")
    (folder / "config.json").write_text(json.dumps(config(400)), encoding="utf-8")
    engine, exact = vllm(folder), TokenizerCache().open(folder).exact
    print()
    print(compare(engine, exact, CHAT, orderly(), cases=_FEW, ask=tokenize))
    print(compare(engine, exact, COMPLETION, completions, cases=_FEW, ask=tokenize))
