"""Models in Mistral's own format, by Mistral's own library.

The ids come from vLLM 0.32.0 with `--tokenizer-mode mistral`; `tests/vllm` checks them again.
"""

import json
from array import array
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from router.api.endpoints import ENDPOINTS
from router.rendering.folder import MAX_FILE_BYTES, BadFolder
from router.rendering.messages import NotReproducible
from router.rendering.mistral import Mistral, mistrals_library
from router.rendering.tokens import PromptTokenizer
from tests.rendering.folders import CALL, CHAT, HI, TOOL, says
from tests.rendering.other_formats import make_mistral

pytest.importorskip("mistral_common")


@cache
def exact(kind: str) -> PromptTokenizer:
    """Return how prompts for a model of that kind are tokenized."""
    with TemporaryDirectory() as made:
        return PromptTokenizer(Mistral(mistrals_library(make_mistral(Path(made), kind)), {}))


def ids(kind: str = "tekken-v13", path: str = CHAT, **asked: Any) -> list[int]:
    """Return the ids of a request to such a model."""
    return array("I", exact(kind).ids(ENDPOINTS[path], json.dumps(asked).encode())).tolist()


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("tekken-v3", [1, 3, 5934, 1267, 37133, 4]),
        ("tekken-v13", [1, 17, 5934, 18, 3, 37133, 4]),
        ("sentencepiece-v3", [1, 3, 2507, 781, 781, 24577, 4]),
    ],
)
def test_conversations(kind: str, found: list[int]) -> None:
    """Each version has its own markers, and there is no template."""
    assert ids(kind, messages=[says("system", "Be"), HI]) == found


def test_texts() -> None:
    """With BOS or without; special tokens written by a user are plain text."""
    path = "/v1/completions"
    bare = ids(path=path, prompt="Hi", add_special_tokens=False)
    assert ids(path=path, prompt="Hi") == [1, *bare] == [1, 37133]
    assert ids(path=path, prompt=[5, 6]) == [5, 6]
    assert 3 not in ids(path=path, prompt="[INST]")


def with_arguments(arguments: str) -> dict[str, Any]:
    """Return a tool call."""
    return {**CALL, "function": {"name": "get_weather", "arguments": arguments}}


@pytest.mark.parametrize(
    ("call", "same"),
    [
        ({**CALL, "id": "call_abcdefghi"}, CALL),
        (with_arguments('{"place":"Zürich"}'), with_arguments('{"place": "Z\\u00fcrich"}')),
        (with_arguments("[1]"), with_arguments("{}")),
    ],
)
def test_calls_of_tools(call: dict[str, Any], same: dict[str, Any]) -> None:
    """Call ids are cut to nine characters, and arguments are serialised again."""

    def talk(call: dict[str, Any]) -> list[dict[str, Any]]:
        result = says("tool", "21 °C", tool_call_id=call["id"])
        return [HI, says("assistant", None, tool_calls=[call]), result]

    assert ids(messages=talk(call), tools=[TOOL]) == ids(messages=talk(same), tools=[TOOL])
    assert ids(messages=[HI], tools=[TOOL]) != ids(messages=[HI])


def test_an_answer_is_continued() -> None:
    """Without its end marker, the prompt is a prefix of the continued conversation's."""
    said = says("assistant", "One, two,")
    opened = ids(messages=[HI, said], add_generation_prompt=False, continue_final_message=True)
    assert ids(messages=[HI, said, HI])[: len(opened)] == opened
    assert opened[-1] != 2


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"messages": [HI], "chat_template_kwargs": {}}, "odd template keywords"),
        ({"messages": [HI, says("assistant", "x")]}, "continues and begins a message"),
        (
            {"messages": [HI], "add_generation_prompt": False, "continue_final_message": True},
            "nothing to continue",
        ),
        ({"messages": [HI, says("tool", "x")]}, "refused by Mistral's library"),
        ({"messages": [says("critic", "x")]}, "refused by Mistral's library"),
        ({"messages": [says("user", [{"type": "refusal", "refusal": "x"}])]}, "parts that are"),
        ({"messages": [says("user", [{"type": "image_url"}])]}, "parts that are not text"),
        ({"path": "/v1/responses", "input": "Hi"}, "a dialect that is not known of Mistral's"),
    ],
)
def test_what_is_not_known(asked: dict[str, Any], reason: str) -> None:
    """The reason is given."""
    with pytest.raises(NotReproducible, match=f"^{reason}"):
        ids(**asked)


def test_what_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what is wrong with the file, and which extra to install if that is missing."""
    (tmp_path / "tekken.json").write_text("{}")
    with pytest.raises(BadFolder, match=r"the tokenizer in .* cannot be read"):
        mistrals_library(tmp_path)
    with (tmp_path / "tekken.json").open("ab") as file:
        file.truncate(MAX_FILE_BYTES + 1)  # a sparse file, which takes no space
    with pytest.raises(BadFolder, match=r"tekken\.json is over 256 MiB"):
        mistrals_library(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "mistral_common.tokens.tokenizers.mistral", None)
    with pytest.raises(BadFolder, match=r"pip install 'warmroute\[mistral\]'"):
        mistrals_library(tmp_path)
