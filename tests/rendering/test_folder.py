"""What is read from a model folder."""

import json
from pathlib import Path
from typing import Any

import pytest

from router.api.endpoints import ENDPOINTS
from router.rendering.folder import MAX_FILE_BYTES, BadFolder, read_folder
from router.rendering.messages import NotReproducible
from tests.rendering.families import FAMILIES, folder
from tests.rendering.folders import CHAT, TOOL, of_folder, says

CONFIG, JINJA, MORE = "tokenizer_config.json", "chat_template.jinja", "additional_chat_templates"
OLDER = "chat_template.json"
TEMPLATES = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]


def write(path: Path, files: dict[str, Any]) -> Path:
    """Write files into a folder, as text or as JSON."""
    for name, content in files.items():
        file = path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return path


@pytest.mark.parametrize(
    ("files", "plain", "tooled"),
    [
        ({}, None, None),
        ({CONFIG: {"chat_template": "C"}}, "C", "C"),
        ({CONFIG: {"chat_template": TEMPLATES}}, "D", "T"),
        ({CONFIG: {"chat_template": TEMPLATES[:1]}}, "D", "D"),
        ({CONFIG: {"chat_template": TEMPLATES[1:]}}, None, "T"),
        ({CONFIG: {"chat_template": TEMPLATES}, JINJA: "J"}, "J", "J"),
        ({JINJA: "J", f"{MORE}/tool_use.jinja": "U", f"{MORE}/rag.jinja": "R"}, "J", "U"),
        ({CONFIG: {"chat_template": "C"}, f"{MORE}/tool_use.jinja": "U"}, None, "U"),
        # Multimodal models: the processor's template, except for requests with tools.
        ({CONFIG: {"chat_template": "C"},
          "processor_config.json": {"processor_class": "P", "chat_template": "S"}}, "S", "C"),
        ({CONFIG: {"chat_template": "C", "processor_class": "P"}, OLDER: {"chat_template": "O"}},
         "O", "C"),
        ({"preprocessor_config.json": {"processor_class": "P"}, OLDER: {"chat_template": "O"}},
         "O", None),
        ({CONFIG: {"chat_template": "C"}, OLDER: {"chat_template": "O"}}, "C", "C"),
    ],
)  # fmt: skip
def test_which_template(
    tmp_path: Path, files: dict[str, Any], plain: str | None, tooled: str | None
) -> None:
    """Files take precedence over the configuration, and tools may have their own template."""
    read = read_folder(write(tmp_path, files))
    assert (read.template(tools=False), read.template(tools=True)) == (plain, tooled)


@pytest.mark.parametrize(
    ("config", "older", "found"),
    [
        ({"bos_token": "<s>", "eos_token": None}, {}, {"bos_token": "<s>"}),
        ({"eos_token": {"__type": "AddedToken", "content": "</s>"}}, {}, {"eos_token": "</s>"}),
        ({"bos_token": "<s>", "unk_token": "<u>", "x_token": "x"},
         {"bos_token": {"content": "<b>"}, "pad_token": "<p>"},
         {"bos_token": "<b>", "unk_token": "<u>", "pad_token": "<p>"}),
        ({"bos_token": "<s>", "added_tokens_decoder": {}}, {"pad_token": "<p>"},
         {"bos_token": "<s>"}),
    ],
)  # fmt: skip
def test_special_tokens(
    tmp_path: Path, config: dict[str, Any], older: dict[str, Any], found: dict[str, str]
) -> None:
    """From the configuration, or from the older file where nothing newer is there."""
    write(tmp_path, {CONFIG: config, "special_tokens_map.json": older})
    assert read_folder(tmp_path).special_tokens == found


@pytest.mark.parametrize(
    ("files", "own"),
    [
        ({"config.json": {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}}, ""),
        ({"config.json": {"model_type": "gpt_oss"}}, "program"),
        ({"config.json": {"architectures": ["DeepseekV32ForCausalLM"]}}, "program"),
        ({"config.json": {"architectures": ["MoonshotKimiaForCausalLM"]}}, "tokenizer"),
        ({"config.json": [1]}, ""),
        ({"tekken.json": "{}"}, "mistral"),
        ({"tokenizer.model.v3": ""}, "mistral"),
        ({"tekken.json": "{}", "tokenizer.json": "{}"}, ""),
        ({"tekken.json": "{}", "tokenizer.json": "{}", "params.json": "{}"}, "mistral"),
        ({"tekken.json": "{}", "params.json": "{}", "model.safetensors": ""}, ""),
        ({"tekken.json": "", "model.safetensors": "", "consolidated.safetensors": ""}, "mistral"),
        ({"params.json": "{}", "consolidated.safetensors": ""}, ""),
    ],
)
def test_models_for_which_engines_have_their_own(
    tmp_path: Path, files: dict[str, Any], own: str
) -> None:
    """For some models, engines ignore the template or even the tokenizer."""
    read = read_folder(write(tmp_path, files))
    found = {"program": read.own_program, "tokenizer": read.own_tokenizer, "mistral": read.mistral}
    assert [name for name, is_own in found.items() if is_own] == ([own] if own else [])


def test_bad_folders_are_named(tmp_path: Path) -> None:
    """What is missing, what is not what it should be, and what is too large."""
    with pytest.raises(BadFolder, match="nothing is not a folder"):
        read_folder(tmp_path / "nothing")
    for content, said in ((b"[1]", f"{CONFIG} is not a JSON object"), (b"{", f"{CONFIG} is not JS"),
                          (b'{"a": "\xff"}', "cannot be read")):  # fmt: skip
        (tmp_path / CONFIG).write_bytes(content)
        with pytest.raises(BadFolder, match=said):
            read_folder(tmp_path)
    with (tmp_path / CONFIG).open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)  # a sparse file, which takes no space
    with pytest.raises(BadFolder, match="is over 256 MiB"):
        read_folder(tmp_path)


def test_a_template_that_is_none(tmp_path: Path) -> None:
    """An invalid template is an error when the folder is opened; it names the folder."""
    path = folder(tmp_path, FAMILIES["chatml"], config={"chat_template": "{% for %}"})
    with pytest.raises(BadFolder, match=rf"the chat template in {tmp_path} is not valid: "):
        of_folder(path)


@pytest.mark.parametrize(
    ("config", "model", "tools", "reason"),
    [
        ({"chat_template": None}, {}, None, "no chat template"),
        ({"chat_template": TEMPLATES[1:]}, {}, None, "no chat template"),
        ({"chat_template": None}, {}, [TOOL], "no chat template"),
        ({}, {"model_type": "gpt_oss"}, None, "a prompt program of its own"),
    ],
)
def test_no_chat_without_a_template(
    tmp_path: Path, config: dict[str, Any], model: dict[str, Any], tools: object, reason: str
) -> None:
    """Chats are refused, but plain texts are tokenized all the same."""
    path = folder(tmp_path, FAMILIES["chatml"], config=config)
    exact = of_folder(write(path, {"config.json": model}))
    body = json.dumps({"messages": [says("user", "Hi")], "tools": tools}).encode()
    with pytest.raises(NotReproducible, match=reason):
        exact.ids(ENDPOINTS[CHAT], body)
    assert exact.ids(ENDPOINTS["/v1/completions"], b'{"prompt": "Hi"}')


def test_nothing_is_known_with_another_tokenizer(tmp_path: Path) -> None:
    """Chats and texts are refused; prompts given as ids are not."""
    config = {"architectures": ["MoonshotKimiaForCausalLM"]}
    exact = of_folder(write(folder(tmp_path, FAMILIES["chatml"]), {"config.json": config}))
    for where, body in ((CHAT, b'{"messages": [{"role": "user", "content": "Hi"}]}'),
                        ("/v1/completions", b'{"prompt": "Hi"}')):  # fmt: skip
        with pytest.raises(NotReproducible, match="a tokenizer of its own"):
            exact.ids(ENDPOINTS[where], body)
    assert exact.ids(ENDPOINTS["/v1/completions"], b'{"prompt": [5]}') == b"\5\0\0\0"


def test_tools_have_a_template_of_their_own(tmp_path: Path) -> None:
    """If the model has one, requests with tools are rendered with it."""
    exact = of_folder(folder(tmp_path, FAMILIES["chatml"], config={"chat_template": TEMPLATES}))
    for tools, said in ((None, b'{"prompt": "D"}'), ([TOOL], b'{"prompt": "T"}')):
        body = json.dumps({"messages": [says("user", "Hi")], "tools": tools}).encode()
        found = exact.ids(ENDPOINTS[CHAT], body)
        assert found == exact.ids(ENDPOINTS["/v1/completions"], said)
