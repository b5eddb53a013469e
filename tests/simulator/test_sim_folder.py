"""Workers with a real model's tokenizer and chat template."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulator.model.conversation import Conversation
from tokenizers import Tokenizer

from simulator.fleet import FleetThread
from simulator.http.errors import ApiError
from simulator.model.answers import GeneratedAnswer
from simulator.model.folder import Folder
from simulator.model.language import language_of
from simulator.settings import FleetSettings
from tests.commands import run
from tests.identity.other_formats import make_mistral
from tests.simulator.folders import CHATML, make_folder

HELLO = [{"role": "user", "content": "Tell me about the sea."}]
ASKED = "<|im_start|>user\nTell me about the sea.<|im_end|>\n<|im_start|>assistant\n"
TOOL = {"type": "function", "function": {"parameters": {"a": 1}, "name": "f", "odd": True}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder."""
    return make_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def reference(model: Path) -> Tokenizer:
    """Its tokenizer, loaded with the tokenizers library."""
    return Tokenizer.from_file(str(model / "tokenizer.json"))


@pytest.fixture(scope="module")
def folder(model: Path) -> Folder:
    """The folder as the simulator reads it."""
    return Folder(model)


@pytest.fixture(scope="module")
def real(model: Path) -> Iterator[httpx.Client]:
    """A client of a worker that uses this folder."""
    settings = FleetSettings(profile="toy", models=("toy",), tokenizer=model)
    with FleetThread(settings) as fleet, httpx.Client(base_url=fleet.urls[0]) as client:
        yield client


def post(client: httpx.Client, path: str, **body: Any) -> Any:
    """Return the JSON response to a JSON body; the request must succeed."""
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_prompt_is_tokenized_as_by_the_library(real: httpx.Client, reference: Tokenizer) -> None:
    """The response is in vLLM's form, with BOS unless the request declines it."""
    text = "The wind, wörld <|im_end|>"
    ids = reference.encode(text, add_special_tokens=False).ids
    told = post(real, "/tokenize", prompt=text)
    assert told == {
        "count": len(ids) + 1,
        "max_model_len": 16_384,
        "tokens": [0, *ids],
        "token_strs": None,
    }
    assert post(real, "/tokenize", prompt=text, add_special_tokens=False)["tokens"] == ids
    strings = post(real, "/tokenize", prompt=text, return_token_strs=True)["token_strs"]
    assert strings[0] == "<|begin|>"
    assert post(real, "/detokenize", tokens=ids)["prompt"] == text


def test_a_chat_is_tokenized_by_the_models_template(
    real: httpx.Client, reference: Tokenizer
) -> None:
    """No BOS is added unless the request asks for it: that is left to the template."""
    ids = reference.encode(ASKED, add_special_tokens=False).ids
    assert post(real, "/tokenize", messages=HELLO)["tokens"] == ids
    more = post(real, "/tokenize", messages=HELLO, add_special_tokens=True)
    assert more["tokens"] == [0, *ids]


def test_usage_counts_those_tokens_and_blocks_are_made_of_them(real: httpx.Client) -> None:
    """A chat, its text and its token ids are the same prompt, and hit each other's cached
    blocks."""
    said = [{"role": "user", "content": "Tell me about the boats. " * 20}]
    tokens = post(real, "/tokenize", messages=said)["tokens"]
    first = post(real, "/v1/chat/completions", messages=said, max_tokens=1)["usage"]
    assert first["prompt_tokens"] == len(tokens)
    assert first["prompt_tokens_details"]["cached_tokens"] < 16
    text = post(real, "/detokenize", tokens=tokens)["prompt"]
    for body in ({"prompt": tokens}, {"prompt": text, "add_special_tokens": False}):
        usage = post(real, "/v1/completions", max_tokens=1, **body)["usage"]
        assert usage["prompt_tokens"] == len(tokens)
        assert usage["prompt_tokens_details"]["cached_tokens"] == (len(tokens) - 1) // 16 * 16
    cold = post(real, "/v1/completions", max_tokens=1, prompt=text)["usage"]  # BOS shifts them
    assert cold["prompt_tokens_details"]["cached_tokens"] == 0


def test_the_next_turn_finds_the_answer_in_the_cache(real: httpx.Client) -> None:
    """An answer that is sent back has the ids it was generated with."""
    said = [{"role": "user", "content": "And the wind? " * 9}]
    first = post(real, "/v1/chat/completions", messages=said, max_tokens=200)
    turns = [*said, first["choices"][0]["message"], {"role": "user", "content": "And then?"}]
    second = post(real, "/v1/chat/completions", messages=turns, max_tokens=5)
    computed = first["usage"]["total_tokens"] - 1  # the last token was never computed
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == computed // 16 * 16


@given(st.integers(0, 2**32 - 1), st.integers(1, 400))
def test_an_answers_text_is_its_tokens(folder: Folder, number: int, length: int) -> None:
    """The text is the same in one piece or in several, and tokenizes to the answer's ids; it begins
    with a letter, so that templates strip nothing."""
    answer = GeneratedAnswer(folder.tokenize(str(number)), length, voice=folder.voice)
    text = answer.text()
    assert len(answer.ids) == len(answer.words(0, length)) == length
    assert folder.tokenize(text, special=False) == answer.ids
    assert b"".join(answer.words(0, 1) + answer.words(1, length)).decode() == text
    assert text[0].isalpha()


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
def test_the_other_dialects_are_the_same_chat(real: httpx.Client, path: str) -> None:
    """Responses and messages, with a system prompt and a text in parts, have the tokens of the
    chat."""
    parts = [{"type": "text", "text": "Tell me"}, {"type": "text", "text": "about it."}]
    if path == "/v1/responses":
        body = {"input": [{"role": "user", "content": parts}], "instructions": "Be kind."}
    else:
        body = {"messages": [{"role": "user", "content": parts}], "model": "toy"}
        body |= {"system": [{"type": "text", "text": "Be "}, {"type": "text", "text": "kind."}]}
    usage = post(real, path, **body, tools=[{"name": "f", "input_schema": {}}])["usage"]
    told = usage["input_tokens"] + usage.get("cache_read_input_tokens", 0)
    system = {"role": "system", "content": "Be kind."}
    chat = [system, {"role": "user", "content": "Tell me\nabout it."}]
    assert told == post(real, "/tokenize", messages=chat)["count"]


def rendered(tmp_path: Path, template: str, messages: list[dict[str, Any]], **more: Any) -> str:
    """Return what a template makes of a conversation."""
    folder = Folder(make_folder(tmp_path / "m", template))
    asked = Conversation(messages=messages, **{"add_generation_prompt": False, **more})
    return folder.detokenize(folder.chat(asked))


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "a\nb"),
        ("{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}",
         "[a][][b]"),
        ("{% for m in messages %}{% for p in m['content'] | list %}{{ p.text }},{% endfor %}"
         "{% endfor %}", "a,,b,"),
    ],
)  # fmt: skip
def test_contents_come_as_text_or_as_parts(tmp_path: Path, template: str, text: str) -> None:
    """In the form that the template expects; joined texts leave empty parts out."""
    parts = [{"type": "text", "text": part} for part in ("a", "", "b")]
    assert rendered(tmp_path, template, [{"role": "user", "content": parts}]) == text


def test_what_is_not_text_counts_as_its_json(tmp_path: Path) -> None:
    """So images do have tokens, if not the right ones."""
    parts = ["a", {"type": "image_url", "image_url": {"url": "x"}}]
    text = rendered(tmp_path, CHATML, [{"role": "user", "content": parts}])
    assert '{"type":"image_url","image_url":{"url":"x"}}' in text


def test_tools_and_calls_come_as_engines_write_them(tmp_path: Path) -> None:
    """Known fields come in the engine's order, arguments as objects; unreadable arguments are
    empty."""
    template = "{{ tools | tojson }}{% for m in messages %}{{ m.tool_calls | tojson }}{% endfor %}"
    calls = [
        {"type": "function", "function": {"name": "f", "arguments": text}}
        for text in ('{"x":1}', "{")
    ]
    text = rendered(tmp_path, template, [{"role": "assistant", "tool_calls": calls}], tools=[TOOL])
    made = {"name": "f", "description": None, "parameters": {"a": 1}}
    assert text.startswith(json.dumps([{"type": "function", "function": made}]))
    assert text.count('{"arguments": {"x": 1}, "name": "f"}') == 1
    assert text.count('"arguments": {}') == 1


def test_reasoning_names_and_ids_are_kept(tmp_path: Path) -> None:
    """Each is where templates look for it."""
    names = "{{ m.reasoning_content }}{{ m.name }}{{ m.tool_call_id }}"
    template = "{% for m in messages %}" + names + "{% endfor %}"
    said = [
        {"role": "assistant", "content": "a", "reasoning": "why ", "name": "Al "},
        {"role": "tool", "content": "b", "tool_call_id": "7"},
    ]
    assert rendered(tmp_path, template, said) == "why Al 7"


def test_developers_speak_as_the_system(tmp_path: Path) -> None:
    """A developer's messages become the system message, unless the template knows the role."""
    said = [{"role": role, "content": role} for role in ("user", "developer", "system")]
    text = rendered(tmp_path, CHATML, said)
    assert text.startswith("<|im_start|>system\ndeveloper\n\nsystem<|im_end|>\n<|im_start|>user")
    parts = CHATML.replace("{{ m.content }}", "{% for p in m.content %}{{ p.text }};{% endfor %}")
    text = rendered(tmp_path, parts, [{"role": "developer", "content": ["a", "b"]}])
    assert text == "<|im_start|>system\na;b;<|im_end|>\n"  # alone and first, it stays as it is
    knows = CHATML + "{% if messages[0].role == 'developer' %}{% endif %}"
    assert rendered(tmp_path, knows, said).startswith("<|im_start|>user")


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{% for m in messages %}{{ m.content }}!{% endfor %}", "One. !Once upon "),
        ("{% for m in messages %}{{ m.content | trim }}!{% endfor %}", "One.!Once upon"),
        ("{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}!{% endfor %}",
         "One. !Once upon "),
    ],
)  # fmt: skip
def test_a_final_message_can_be_continued(tmp_path: Path, template: str, text: str) -> None:
    """The prompt ends where the final message's content ends."""
    said = [{"role": "user", "content": "One. "}, {"role": "assistant", "content": "Once upon "}]
    assert rendered(tmp_path, template, said, continue_final_message=True) == text


def test_templates_know_what_transformers_gives_them(tmp_path: Path) -> None:
    """Special tokens, dates, loop controls, `generation` blocks, and the request's keywords."""
    template = (
        "{{ bos_token }}{{ eos_token }}{{ strftime_now('%Y')[:2] }}"
        "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
        "{{ thinking }}{{ documents | length }}"
    )
    said = [{"role": "user", "content": "hi"}] * 3
    more: dict[str, Any] = {"keywords": {"thinking": "on", "messages": 1}, "documents": [{}]}
    assert rendered(tmp_path, template, said, **more) == "<|begin|><|im_end|>20hion1"


@pytest.mark.parametrize(
    ("template", "messages", "word"),
    [
        (None, HELLO, "no chat template"),
        ("{{ raise_exception('roles must alternate') }}", HELLO, "roles must alternate"),
        ("{{ messages[0].content / 0 }}", HELLO, "unsupported operand"),
        ("{{ messages.clear() }}", HELLO, "safe"),
        (CHATML, [{"content": "a"}], "role"),
        (CHATML, [{"role": "assistant", "tool_calls": [7]}], "functions"),
        (CHATML, [{"role": "user", "content": "\ud800"}], "tokenized"),
    ],
)
def test_what_cannot_be_rendered_is_refused_with_the_reason(
    tmp_path: Path, template: str | None, messages: list[dict[str, Any]], word: str
) -> None:
    """Status 400, as the request is at fault."""
    folder = Folder(make_folder(tmp_path / "m", template))
    with pytest.raises(ApiError, match=word) as refused:
        folder.chat(Conversation(messages=messages))
    assert refused.value.status == 400


def test_models_tell_the_folder(real: httpx.Client, model: Path) -> None:
    """As vLLM does in `root`, the path it loaded the model from."""
    (told,) = real.get("/v1/models").json()["data"]
    assert (told["id"], told["root"]) == ("toy", str(model))


def test_ids_beyond_the_vocabulary_are_refused(real: httpx.Client) -> None:
    """Ids in a prompt are checked; ids that a router sends along are used as the prompt."""
    answer = real.post("/v1/completions", json={"prompt": [1, 400], "max_tokens": 1})
    assert answer.status_code == 400
    assert "Token id 400 is out of vocabulary" in answer.json()["error"]["message"]
    params = {"prompt_token_ids": [5, 6, 7]}
    body = {"messages": HELLO, "max_tokens": 1, "kv_transfer_params": params}
    assert post(real, "/v1/chat/completions", **body)["usage"]["prompt_tokens"] == 3


def test_the_template_for_tools_and_the_one_in_a_file(tmp_path: Path) -> None:
    """Named templates in the configuration are used; a template file takes precedence over them."""
    named = [{"name": name, "template": name} for name in ("default", "tool_use")]
    path = make_folder(tmp_path / "m", None, chat_template=named)
    asked = Conversation(messages=HELLO)
    tooled = Conversation(messages=HELLO, tools=[TOOL])
    folder = Folder(path)
    assert folder.detokenize(folder.chat(asked)) == "default"
    assert folder.detokenize(folder.chat(tooled)) == "tool_use"
    (path / "chat_template.jinja").write_text("file")
    folder = Folder(path)
    assert folder.detokenize(folder.chat(asked)) == "file"


def test_a_bad_folder_is_refused_at_the_start(tmp_path: Path) -> None:
    """No tokenizer, a broken template, or an invalid configuration; the command fails likewise."""
    with pytest.raises(ValueError, match=r"tokenizer\.json cannot be read"):
        Folder(tmp_path)
    with pytest.raises(ValueError, match="not a valid chat template"):
        Folder(make_folder(tmp_path / "a", "{% for %}"))
    (make_folder(tmp_path / "b") / "tokenizer_config.json").write_text("[]")
    with pytest.raises(ValueError, match="not a JSON object"):
        Folder(tmp_path / "b")
    done = run("simulate", "--workers", 1, "--port", 0, "--tokenizer", tmp_path)
    assert done.returncode == 2
    assert "tokenizer.json cannot be read" in done.stderr


@pytest.mark.parametrize(
    ("file", "extra"), [("tokenizer.model", "transformers"), ("tekken.json", "mistral")]
)
def test_a_format_without_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, extra: str
) -> None:
    """The error names the extra to install."""
    (tmp_path / file).write_bytes(b"x")
    monkeypatch.setattr("simulator.model.vocabulary.find_spec", lambda _: None)
    monkeypatch.setitem(sys.modules, "mistral_common.tokens.tokenizers.mistral", None)
    with pytest.raises(ValueError, match=rf"pip install 'warmroute\[{extra}\]'"):
        language_of(tmp_path)


@pytest.mark.parametrize("file", ["tokenizer.model", "tekken.json", "tokenizer.json"])
def test_a_file_that_is_no_tokenizer(tmp_path: Path, file: str) -> None:
    """For every format the error names the path."""
    (tmp_path / file).write_bytes(b"no")
    with pytest.raises(ValueError, match=str(tmp_path)):
        language_of(tmp_path)


def test_mistrals_format_without_what_it_needs(tmp_path: Path) -> None:
    """Workers refuse what an engine with this format refuses."""
    made = language_of(make_mistral(tmp_path, "tekken-v3"))
    hello = {"role": "user", "content": "Hello"}
    said = {"role": "assistant", "content": "Hi"}
    continued = Conversation(
        messages=[hello], continue_final_message=True, add_generation_prompt=False
    )
    for asked in (
        Conversation(messages=[hello, said]),
        continued,
        Conversation(messages=[{"role": "nobody", "content": "x"}]),
        Conversation(messages=[]),
    ):
        with pytest.raises(ApiError):
            made.chat(asked)
    assert made.detokenize(made.tokenize("Zürich 👍")) == "<s>Zürich 👍"
    assert made.strings(made.tokenize("abc", special=False)) == ["abc"]
