"""The simulated tokenizer, chat template and answers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulator.model.template import render

from simulator.model.answers import SIMULATED, GeneratedAnswer, natural_length
from simulator.model.tokens import IM_END_ID, IM_START_ID, detokenize, tokenize

PIECES = st.sampled_from(
    ["<|im_start|>", "<|im_end|>", "<|im_", "user\n", "a", "wörld", "\n", "日"]
)


@given(st.one_of(st.text(), st.lists(PIECES).map("".join)))
def test_any_text_comes_back(text: str) -> None:
    """Tokenizing and detokenizing gives the same text."""
    text = text.encode("utf-8", "ignore").decode()
    assert detokenize(tokenize(text)) == text


def test_special_tokens_are_one_id_each() -> None:
    """They are separated from the text around them."""
    tokens = tokenize("<|im_start|>user\nabcd<|im_end|>\n")
    assert tokens[0] == IM_START_ID
    assert tokens.count(IM_END_ID) == 1
    assert len(tokens) == 6  # start, "user", "\n", "abcd", end, "\n"


@given(st.text(max_size=40), st.text(max_size=40))
def test_content_is_cut_alike_wherever_it_stands(before: str, content: str) -> None:
    """A message's ids do not depend on the messages before it."""
    before, content = (text.encode("utf-8", "ignore").decode() for text in (before, content))
    alone = tokenize(f"<|im_start|>user\n{content}<|im_end|>")
    after = tokenize(
        f"<|im_start|>system\n{before}<|im_end|>\n<|im_start|>user\n{content}<|im_end|>"
    )
    assert after[-len(alone) :] == alone


@given(st.text(max_size=50), st.integers(1, 9000))
def test_an_answer_sent_back_has_the_ids_it_was_generated_with(text: str, length: int) -> None:
    """So the next turn's prompt begins with the previous prompt and its answer."""
    question = {"role": "user", "content": text.encode("utf-8", "ignore").decode()}
    prompt = tokenize(render([question]))
    answer = GeneratedAnswer(prompt, length)
    reply = {"role": "assistant", "content": answer.text()}
    turn = tokenize(render([question, reply, {"role": "user", "content": "more"}]))
    assert turn[: len(prompt) + length] == prompt + answer.ids


def test_an_answers_words_are_its_text() -> None:
    """Streamed or whole, the text is the same; no piece begins with a space, so that stripping
    takes nothing away."""
    answer = GeneratedAnswer(tokenize("hello"), 5000, variant=3)
    assert b"".join(answer.words(0, 5000)).decode() == answer.text()
    assert all(len(word) == 4 and not word.startswith(b" ") for word in SIMULATED.pieces)


def test_answers_follow_from_the_prompt() -> None:
    """The same prompt gets the same answer; other prompts and other choices get different ones."""
    one, two = tokenize("one"), tokenize("two")
    assert GeneratedAnswer(one, 20).ids == GeneratedAnswer(one, 20).ids
    assert GeneratedAnswer(one, 20).ids != GeneratedAnswer(two, 20).ids
    assert GeneratedAnswer(one, 20).ids != GeneratedAnswer(one, 20, variant=1).ids
    assert 32 <= natural_length(one) <= 256


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("hi", "hi"),
        ([{"type": "text", "text": "hi"}, {"type": "text", "text": "!"}], "hi!"),
        (["hi"], "hi"),
        (None, ""),
        ([{"type": "image_url", "image_url": 1}], '{"type":"image_url","image_url":1}'),
        ({"odd": 1}, '{"odd":1}'),
    ],
)
def test_content_may_be_text_or_parts(content: object, text: str) -> None:
    """Text parts are joined; anything else counts as its JSON."""
    rendered = render([{"role": "user", "content": content}], add_generation_prompt=False)
    assert rendered == f"<|im_start|>user\n{text}<|im_end|>\n"


def test_tools_come_first_and_calls_after_content() -> None:
    """So conversations with the same tools share their beginning."""
    message = {"role": "assistant", "content": "a", "tool_calls": [{"id": "1"}]}
    rendered = render([message], [{"name": "f"}])
    assert rendered.startswith('<|im_start|>tools\n[{"name":"f"}]<|im_end|>\n')
    assert 'a[{"id":"1"}]<|im_end|>' in rendered
    assert rendered.endswith("<|im_start|>assistant\n")


def test_a_final_message_can_be_continued() -> None:
    """The prompt then ends with its content."""
    message = {"role": "assistant", "content": "Once upon"}
    assert render([message], continue_final_message=True).endswith("Once upon")
