"""What a worker's model knows: its tokens, its chat template, and the text of its answers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from simulator.fleet import FleetThread
from simulator.model.answers import GeneratedAnswer
from simulator.model.language import Language, language_of
from simulator.model.tokens import ChatParams, detokenize, render, tokenize
from simulator.settings import FleetSettings
from tests.commands import run
from tests.tokenizers.models import make_model

PIECES = st.sampled_from(
    ["<|im_start|>", "<|im_end|>", "<|im_", "user\n", "a", "wörld", "\n", "日"]
)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=40)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real model's folder."""
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module", params=["simulated", "folder"])
def language(request: pytest.FixtureRequest, folder: Path) -> Language:
    """The simulator's own language, and that of a real model's folder."""
    return language_of(folder if request.param == "folder" else None)


@pytest.fixture(scope="module")
def real(folder: Path) -> Iterator[httpx.Client]:
    """A client of a worker that uses the folder."""
    settings = FleetSettings(profile="toy", models=("toy",), tokenizer=folder)
    with FleetThread(settings) as fleet, httpx.Client(base_url=fleet.urls[0]) as client:
        yield client


def post(client: httpx.Client, path: str, **body: Any) -> Any:
    """Return the JSON response to a JSON body; the request must succeed."""
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def rendered(language: Language, *messages: dict[str, Any], **params: Any) -> str:
    """Return the prompt that the language's template makes of a conversation."""
    params = {"add_generation_prompt": False, **params}
    return language.detokenize(language.chat(ChatParams(messages=messages, **params)))


@given(st.one_of(TEXTS, st.lists(PIECES).map("".join)))
def test_any_text_comes_back(text: str) -> None:
    """Tokenizing and detokenizing gives the same text."""
    assert detokenize(tokenize(text)) == text


@given(TEXTS, st.integers(1, 9000))
def test_an_answer_sent_back_has_the_ids_it_was_generated_with(text: str, length: int) -> None:
    """So the next turn's prompt begins with the previous prompt and its answer."""
    question, more = ({"role": "user", "content": content} for content in (text, "more"))
    prompt = tokenize(render(ChatParams(messages=[question])))
    answer = GeneratedAnswer(prompt, length)
    reply = {"role": "assistant", "content": answer.text()}
    turn = tokenize(render(ChatParams(messages=[question, reply, more])))
    assert turn[: len(prompt) + length] == prompt + answer.ids


def test_a_conversation_is_rendered(language: Language) -> None:
    """Texts are taken from parts, and what is not text counts as its JSON."""
    image = {"type": "image_url", "image_url": 1}
    parts = [{"type": "text", "text": "hi"}, image]
    text = rendered(language, {"role": "user", "content": parts}, {"role": "user", "content": None})
    assert "<|im_start|>user\nhi" in text
    assert '{"type":"image_url","image_url":1}<|im_end|>\n' in text
    assert text.endswith("<|im_start|>user\n<|im_end|>\n")
    continued = {"role": "assistant", "content": "Once upon"}
    assert rendered(language, continued, continue_final_message=True).endswith("Once upon")
    assert rendered(language, continued, add_generation_prompt=True).endswith("assistant\n")


def test_tools_come_first_and_calls_after_content(language: Language) -> None:
    """Calls reach a real model's template with their arguments as objects, in an engine's order."""
    call = {"id": "1", "function": {"name": "f", "arguments": '{"a": 1}'}}
    message = {"role": "assistant", "content": "a", "tool_calls": [call]}
    text = rendered(language, message, tools=[{"name": "g"}])
    assert text.startswith("<|im_start|>tools\n[{")
    if language.top < 1000:
        assert 'a{"arguments": {"a": 1}, "name": "f"}<|im_end|>' in text
    else:
        assert 'a[{"id":"1"' in text


def test_a_real_models_tokens_are_the_librarys(real: httpx.Client, folder: Path) -> None:
    """Of texts, of chats in the model's own template, in `usage`, and there and back."""
    reference = Tokenizer.from_file(str(folder / "tokenizer.json"))
    text = "The wind, wörld <|im_end|>"
    ids = reference.encode(text).ids
    body = post(real, "/tokenize", prompt=text, return_token_strs=True)
    assert (body["tokens"], body["count"]) == (ids, len(ids))
    assert body["token_strs"] == reference.encode(text).tokens
    assert post(real, "/detokenize", tokens=ids)["prompt"] == text
    chat = [{"role": "user", "content": "Hello"}]
    ids = reference.encode("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n").ids
    assert post(real, "/tokenize", messages=chat)["tokens"] == ids
    usage = post(real, "/v1/chat/completions", messages=chat, max_tokens=1)["usage"]
    assert usage["prompt_tokens"] == len(ids)


def test_what_a_template_refuses_is_refused_with_its_reason(tmp_path: Path) -> None:
    """The worker answers 400; a broken folder stops the start, and names the file."""
    model = make_model(tmp_path / "refuses", "{{ raise_exception('roles must alternate') }}")
    with FleetThread(FleetSettings(profile="toy", models=("toy",), tokenizer=model)) as fleet:
        body = {"messages": [{"role": "user", "content": "a"}]}
        answer = httpx.post(f"{fleet.urls[0]}/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "roles must alternate"
    with pytest.raises(ValueError, match="not a valid chat template"):
        language_of(make_model(tmp_path / "broken", "{% for %}"))
    done = run("simulate", "--workers", 1, "--port", 0, "--tokenizer", tmp_path)
    assert done.returncode == 2
    assert "tokenizer.json cannot be read" in done.stderr


def test_ids_beyond_the_vocabulary_are_refused(real: httpx.Client) -> None:
    """Ids of a prompt are checked, as an engine checks them."""
    answer = real.post("/v1/completions", json={"prompt": [1, 40_000], "max_tokens": 1})
    assert answer.status_code == 400
    assert "Token id 40000 is out of vocabulary" in answer.json()["error"]["message"]
