"""Models in Mistral's own format, which engines tokenize by Mistral's library."""

import json
import shutil
from pathlib import Path

import pytest

from router.identity.shelf import Shelf
from tests.identity.mistrals import KINDS, make_mistral
from tests.vllm.comparing import CHAT, COMPLETION, chat, compare, tokenize
from tests.vllm.conftest import StartEngine
from tests.vllm.conversations import completions, orderly
from tests.vllm.engine import config
from tests.vllm.test_same_tokens import CASES

pytest.importorskip("mistral_common")

#: An engine each, so a few cases of each kind.
_FEW = max(1, CASES // 20)


@pytest.mark.parametrize("kind", KINDS)
def test_conversations(vllm: StartEngine, tmp_path: Path, kind: str) -> None:
    """Calls of tools only as they are answered: `/tokenize` refuses them."""
    folder = make_mistral(tmp_path / kind, kind)
    size = 140_000 if (folder / "tekken.json").is_file() else 33_000
    (folder / "config.json").write_text(json.dumps(config(size)), encoding="utf-8")
    engine, volume = vllm(folder, "--tokenizer-mode", "mistral"), Shelf().open(folder)
    assert volume.library == "mistral-common"
    print()
    print(kind, compare(engine, volume.exact, CHAT, orderly(), cases=_FEW, ask=chat))
    print(kind, compare(engine, volume.exact, CHAT, orderly(), cases=_FEW, ask=tokenize))
    print(kind, compare(engine, volume.exact, COMPLETION, completions, cases=_FEW, ask=tokenize))
    shutil.rmtree(folder)
