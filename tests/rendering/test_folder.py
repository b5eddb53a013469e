"""What is read from a model folder."""

import json
from pathlib import Path
from typing import Any

import pytest

from router.api.endpoints import ENDPOINTS
from router.rendering.errors import BadFolder, NotReproducible
from router.rendering.folder import MAX_FILE_BYTES, read_folder
from router.rendering.renderer import TemplateRenderer
from router.rendering.tokenizer import load
from router.rendering.tokens import PromptTokenizer
from tests.rendering.families import FAMILIES, folder
from tests.rendering.folders import CHAT, TOOL, says

CONFIG = "tokenizer_config.json"
TEMPLATES = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]


def write(path: Path, **files: Any) -> Path:
    """Write files into a folder; in names, `__` stands for a dot and `_in_` for a slash."""
    for name, content in files.items():
        file = path / name.replace("__", ".").replace("_in_", "/")
        file.parent.mkdir(exist_ok=True)
        file.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return path


@pytest.mark.parametrize(
    ("files", "plain", "tooled"),
    [
        ({}, None, None),
        ({"tokenizer_config__json": {"chat_template": "C"}}, "C", "C"),
        ({"tokenizer_config__json": {"chat_template": TEMPLATES}}, "D", "T"),
        ({"tokenizer_config__json": {"chat_template": TEMPLATES[:1]}}, "D", "D"),
        ({"tokenizer_config__json": {"chat_template": TEMPLATES[1:]}}, None, "T"),
        ({"tokenizer_config__json": {"chat_template": "C"}, "chat_template__jinja": "J"}, "J", "J"),
        (
            {
                "tokenizer_config__json": {"chat_template": TEMPLATES},
                "chat_template__jinja": "J",
            },
            "J",
            "J",
        ),
        (
            {
                "chat_template__jinja": "J",
                "additional_chat_templates_in_tool_use__jinja": "U",
                "additional_chat_templates_in_rag__jinja": "R",
            },
            "J",
            "U",
        ),
        (
            {
                "tokenizer_config__json": {"chat_template": "C"},
                "additional_chat_templates_in_tool_use__jinja": "U",
            },
            None,
            "U",
        ),
        # Multimodal models: the processor's template, except for requests with tools.
        (
            {
                "tokenizer_config__json": {"chat_template": "C"},
                "processor_config__json": {"processor_class": "P", "chat_template": "S"},
            },
            "S",
            "C",
        ),
        (
            {
                "tokenizer_config__json": {"chat_template": "C", "processor_class": "P"},
                "chat_template__json": {"chat_template": "O"},
            },
            "O",
            "C",
        ),
        (
            {
                "preprocessor_config__json": {"processor_class": "P"},
                "chat_template__json": {"chat_template": "O"},
            },
            "O",
            None,
        ),
        (
            {
                "tokenizer_config__json": {"chat_template": "C"},
                "chat_template__json": {"chat_template": "O"},
            },
            "C",
            "C",
        ),
    ],
)
def test_which_template(
    tmp_path: Path, files: dict[str, Any], plain: str | None, tooled: str | None
) -> None:
    """Template files take precedence over the configuration, and tools may have their own
    template."""
    read = read_folder(write(tmp_path, **files))
    assert (read.template(tools=False), read.template(tools=True)) == (plain, tooled)


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"tokenizer_config__json": {"bos_token": "<s>", "eos_token": None}}, {"bos_token": "<s>"}),
        (
            {"tokenizer_config__json": {"eos_token": {"__type": "AddedToken", "content": "</s>"}}},
            {"eos_token": "</s>"},
        ),
        (
            {
                "tokenizer_config__json": {"bos_token": "<s>", "unk_token": "<u>", "x_token": "x"},
                "special_tokens_map__json": {"bos_token": {"content": "<b>"}, "pad_token": "<p>"},
            },
            {"bos_token": "<b>", "unk_token": "<u>", "pad_token": "<p>"},
        ),
        (
            {
                "tokenizer_config__json": {"bos_token": "<s>", "added_tokens_decoder": {}},
                "special_tokens_map__json": {"bos_token": "<b>", "pad_token": "<p>"},
            },
            {"bos_token": "<s>"},
        ),
    ],
)
def test_special_tokens(tmp_path: Path, files: dict[str, Any], found: dict[str, str]) -> None:
    """From the configuration, or from the older file where nothing newer is there."""
    assert read_folder(write(tmp_path, **files)).special_tokens == found


@pytest.mark.parametrize(
    ("files", "own"),
    [
        ({}, ""),
        ({"config__json": {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}}, ""),
        ({"config__json": {"model_type": "gpt_oss"}}, "program"),
        ({"config__json": {"architectures": ["DeepseekV32ForCausalLM"]}}, "program"),
        ({"config__json": {"architectures": ["MoonshotKimiaForCausalLM"]}}, "tokenizer"),
        ({"tekken__json": "{}"}, "mistral"),
        ({"tokenizer__model__v3": ""}, "mistral"),
        ({"tekken__json": "{}", "tokenizer__json": "{}"}, ""),
        ({"tekken__json": "{}", "tokenizer__json": "{}", "params__json": "{}"}, "mistral"),
        ({"tekken__json": "{}", "model__safetensors": ""}, ""),
        ({"tekken__json": "{}", "params__json": "{}", "model__safetensors": ""}, ""),
        (
            {"tekken__json": "{}", "model__safetensors": "", "consolidated__safetensors": ""},
            "mistral",
        ),
        ({"params__json": "{}", "consolidated__safetensors": ""}, ""),
    ],
)
def test_models_for_which_engines_have_their_own(
    tmp_path: Path, files: dict[str, Any], own: str
) -> None:
    """For some models, engines ignore the template or even the tokenizer."""
    read = read_folder(write(tmp_path, **files))
    assert (read.own_program, read.own_tokenizer, read.mistral) == (
        own == "program",
        own == "tokenizer",
        own == "mistral",
    )


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"tokenizer_config__json": "[1]"}, "tokenizer_config.json is not a JSON object"),
    ],
)
def test_bad_files_are_named(tmp_path: Path, files: dict[str, Any], said: str) -> None:
    """The error names the file and says what is wrong with it."""
    with pytest.raises(BadFolder, match=said):
        read_folder(write(tmp_path, **files))


def test_bad_folders_are_named(tmp_path: Path) -> None:
    """A missing folder, a file that is not UTF-8, and one that is too large."""
    with pytest.raises(BadFolder, match="nothing is not a folder"):
        read_folder(tmp_path / "nothing")
    (tmp_path / CONFIG).write_bytes(b'{"a": "\xff"}')
    with pytest.raises(BadFolder, match="cannot be read"):
        read_folder(tmp_path)
    with (tmp_path / CONFIG).open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)  # a sparse file, which takes no space
    with pytest.raises(BadFolder, match="is over 256 MiB"):
        read_folder(tmp_path)


def test_a_template_that_is_none(tmp_path: Path) -> None:
    """An invalid template is an error when the folder is opened; it names the folder."""
    path = folder(tmp_path, FAMILIES["chatml"], config={"chat_template": "{% for %}"})
    read, (tokenizer, _) = read_folder(path), load(path)
    with pytest.raises(BadFolder, match=rf"the chat template in {tmp_path} is not valid: "):
        TemplateRenderer(read, tokenizer)


@pytest.mark.parametrize(
    ("config", "files", "tools", "reason"),
    [
        ({"chat_template": None}, {}, None, "no chat template"),
        ({"chat_template": TEMPLATES[1:]}, {}, None, "no chat template"),
        ({"chat_template": None}, {}, [TOOL], "no chat template"),
        ({}, {"config__json": {"model_type": "gpt_oss"}}, None, "a prompt program of its own"),
    ],
)
def test_no_chat_without_a_template(
    tmp_path: Path, config: dict[str, Any], files: dict[str, Any], tools: object, reason: str
) -> None:
    """Chats are refused, but plain texts are tokenized all the same."""
    path = write(folder(tmp_path, FAMILIES["chatml"], config=config), **files)
    exact = PromptTokenizer(TemplateRenderer(read_folder(path), load(path)[0]))
    body = json.dumps({"messages": [says("user", "Hi")], "tools": tools}).encode()
    with pytest.raises(NotReproducible, match=reason):
        exact.ids(ENDPOINTS[CHAT], body)
    assert exact.ids(ENDPOINTS["/v1/completions"], b'{"prompt": "Hi"}')


def test_nothing_is_known_with_another_tokenizer(tmp_path: Path) -> None:
    """Chats and texts are refused; prompts given as ids are not."""
    config = {"architectures": ["MoonshotKimiaForCausalLM"]}
    path = write(folder(tmp_path, FAMILIES["chatml"]), config__json=config)
    exact = PromptTokenizer(TemplateRenderer(read_folder(path), load(path)[0]))
    for where, body in ((CHAT, b'{"messages": [{"role": "user", "content": "Hi"}]}'),
                        ("/v1/completions", b'{"prompt": "Hi"}')):  # fmt: skip
        with pytest.raises(NotReproducible, match="a tokenizer of its own"):
            exact.ids(ENDPOINTS[where], body)
    assert exact.ids(ENDPOINTS["/v1/completions"], b'{"prompt": [5]}') == b"\5\0\0\0"


def test_tools_have_a_template_of_their_own(tmp_path: Path) -> None:
    """If the model has one, requests with tools are rendered with it."""
    path = folder(tmp_path, FAMILIES["chatml"], config={"chat_template": TEMPLATES})
    exact = PromptTokenizer(TemplateRenderer(read_folder(path), load(path)[0]))
    for tools, said in ((None, b'{"prompt": "D"}'), ([TOOL], b'{"prompt": "T"}')):
        body = json.dumps({"messages": [says("user", "Hi")], "tools": tools}).encode()
        found = exact.ids(ENDPOINTS[CHAT], body)
        assert found == exact.ids(ENDPOINTS["/v1/completions"], said)
