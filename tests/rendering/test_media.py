"""Chats with images: the tokens before the first image are known, and none after it."""

import json
from array import array
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from router.api.endpoints import ENDPOINTS
from router.rendering.messages import NOT_TEXT, NotReproducible
from router.rendering.probes import head_answer
from router.rendering.tokens import MAX_PROMPT_CHARS, PromptHead, PromptTokenizer
from tests.rendering.families import Family, folder
from tests.rendering.folders import CHAT, HI, of_folder, says

#: Like the templates of Qwen's vision models.
SEEING = """\
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}
{%- for part in message.content %}
{%- if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>
{%- elif part.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>
{%- elif part.type == 'text' %}{{ part.text }}{% endif %}
{%- endfor %}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
#: The same, but all images come before the conversation.
ALBUM = """\
{%- for message in messages %}{% for part in message.content %}
{%- if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% endif %}
{%- endfor %}{% endfor -%}""" + SEEING.replace("part.type == 'image'", "false")
TOKENS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>"),
    *("<|image_pad|>", "<|video_pad|>"),
)

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
OTHER = {"type": "image_url", "image_url": {"url": "data:image/png;base64,BBBB"}}
VIDEO = {"type": "video_url", "video_url": {"url": "https://example.com/a.mp4"}}
SYSTEM = says("system", "Be brief.")


def part(text: str) -> dict[str, str]:
    """Return a text part."""
    return {"type": "text", "text": text}


@cache
def exact(template: str = SEEING) -> PromptTokenizer:
    """Return how prompts for a model with this template are tokenized."""
    with TemporaryDirectory() as made:
        return of_folder(folder(Path(made), Family(template, TOKENS, eos="<|im_end|>")))


def head(*messages: dict[str, Any], template: str = SEEING, **more: Any) -> PromptHead:
    """Return what is known of a chat with images."""
    body = json.dumps({"model": "m", "messages": list(messages), **more}).encode()
    return exact(template).head(ENDPOINTS[CHAT], body)


def ids(text: str) -> list[int]:
    """Return the ids of a text."""
    asked = json.dumps({"prompt": text, "add_special_tokens": False}).encode()
    return array("I", exact().ids(ENDPOINTS["/v1/completions"], asked)).tolist()


@pytest.mark.parametrize(
    ("content", "before"),
    [
        ([part("What is this? "), IMAGE], "What is this? "),
        ([IMAGE, part("What is this?")], ""),
        ([part("a"), part("b"), IMAGE, part("c"), OTHER], "ab"),
        ([part("Look: "), VIDEO, IMAGE], "Look: "),
    ],
)
def test_all_before_the_first_is_known(content: list[Any], before: str) -> None:
    """To the last token, whatever the order of parts."""
    text = f"<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n{before}"
    found = head(SYSTEM, says("user", content), HI)
    assert array("I", found.ids).tolist() == ids(text)
    assert found.media == sum(part["type"] != "text" for part in content)
    assert found.tokens > len(found.ids) // 4


def test_earlier_turns_are_known() -> None:
    """The tokens of the turns before an image are the same as without it."""
    turn = json.dumps({"messages": [SYSTEM, HI], "add_generation_prompt": False}).encode()
    earlier = exact().ids(ENDPOINTS[CHAT], turn)
    found = head(SYSTEM, HI, says("assistant", "Hi."), says("user", [IMAGE]))
    assert found.ids.startswith(earlier)
    assert head(SYSTEM, HI, says("assistant", "Hi."), says("user", [OTHER])).ids == found.ids


def test_templates_that_put_images_elsewhere() -> None:
    """Text after the first one is not known; nor anything, if what precedes it depends on the
    others, or if the template takes texts: then only the engine knows where it puts an image."""
    assert head(SYSTEM, says("user", [part("x"), IMAGE]), template=ALBUM).ids == b""
    count = "messages[0].content | selectattr('type', 'equalto', 'image') | list | length"
    counting = "{% if (" + count + ") > 1 %}An album: {% endif %}" + SEEING
    for template in (counting, "{{ messages[0].content }}"):
        with pytest.raises(NotReproducible, match=NOT_TEXT):
            head(says("user", [IMAGE, OTHER]), template=template)


@pytest.mark.parametrize("written", ["<|image_pad|>", "<|vision_start|>", "a<|vision_end|>b"])
def test_a_user_who_writes_what_stands_for_images(written: str) -> None:
    """Engines might take such text for the first image."""
    with pytest.raises(NotReproducible, match=NOT_TEXT):
        head(says("user", [part(written), IMAGE]))
    assert head(says("user", [IMAGE, part(written)])).ids


@pytest.mark.parametrize(
    "message",
    [
        says("user", [part("no image")]),
        says("user", "no image"),
        says("user", [{**IMAGE, "uuid": "x"}]),
        says("user", [{"type": "image_url", "image_url": None}]),
        says("user", [{"type": "image_embeds", "image_embeds": "x"}, IMAGE]),
        says("user", [IMAGE], zz=1),
        {"role": "assistant", "content": [IMAGE], "tool_calls": []},
    ],
)
def test_what_is_not_known(message: dict[str, Any]) -> None:
    """Messages that engines might read differently."""
    with pytest.raises(NotReproducible):
        head(SYSTEM, message)


def test_other_endpoints() -> None:
    """Images at other endpoints are not supported."""
    for path in ("/v1/responses", "/v1/messages", "/v1/completions"):
        with pytest.raises(NotReproducible, match=NOT_TEXT):
            exact().head(ENDPOINTS[path], b'{"messages": [], "input": "x", "prompt": "x"}')


def test_images_are_long() -> None:
    """The length of images does not count."""
    url = "data:image/png;base64," + "A" * MAX_PROMPT_CHARS
    long = says("user", [part("What?"), {"type": "image_url", "image_url": {"url": url}}])
    with pytest.raises(NotReproducible, match=NOT_TEXT):
        exact().ids(ENDPOINTS[CHAT], json.dumps({"messages": [long]}).encode())
    assert head(long) == head(says("user", [part("What?"), IMAGE]))


def test_the_probe() -> None:
    """There is a probe for the tokens before an image, if the template supports images."""
    assert len(head_answer(exact())) > 100
    assert head_answer(exact("{{ messages[0].content }}")) == b""
