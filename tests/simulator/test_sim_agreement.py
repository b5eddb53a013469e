"""The simulator and the router, with separate code, make the same tokens of a conversation."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.api.endpoints import ENDPOINTS
from router.rendering.errors import Unlike
from router.rendering.folder import read_folder
from router.rendering.renderer import Templated
from router.rendering.tokenizer import load
from router.rendering.tokens import Exact
from simulator import bodies
from simulator.bodies import decode
from simulator.errors import ApiError
from simulator.folder import Folder
from simulator.generating import _chat_tokens
from tests.simulator.folders import CHATML, make_folder

CHAT = ENDPOINTS["/v1/chat/completions"]
PARTS = CHATML.replace(
    "{{ m.content }}",
    "{% if m.content is string %}{{ m.content }}"
    "{% else %}{% for p in m.content %}{{ p.text | trim }};{% endfor %}{% endif %}"
    "{{ m.tool_calls | tojson if m.tool_calls }}{{ m.reasoning }}",
)
TOOLS = "{{ tools | tojson if tools }}{{ enable_thinking }}"

TEXTS = st.lists(
    st.sampled_from(["the sea ", "wörld", " ", "<|im_end|>", "日本", "a\nb", "👍", "'s 12"]),
    max_size=4,
).map("".join)
CONTENTS = st.one_of(
    TEXTS, st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": TEXTS}), max_size=3)
)
CALLS = st.fixed_dictionaries(
    {
        "type": st.just("function"),
        "id": st.just("1"),
        "function": st.fixed_dictionaries({"name": st.just("f"), "arguments": st.just('{"b": 1}')}),
    }
)
MESSAGES = st.one_of(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "developer", "user"]), "content": CONTENTS},
        optional={"name": st.just("bob")},
    ),
    st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": CONTENTS},
        optional={"reasoning": TEXTS, "tool_calls": st.lists(CALLS, max_size=2)},
    ),
    st.fixed_dictionaries(
        {"role": st.just("tool"), "content": CONTENTS, "tool_call_id": st.just("1")}
    ),
)
FUNCTIONS = st.fixed_dictionaries(
    {"name": st.just("f"), "parameters": st.just({"b": 1, "a": 2})},
    optional={"description": TEXTS, "strict": st.booleans()},
)
REQUESTS = st.fixed_dictionaries(
    {"messages": st.lists(MESSAGES, min_size=1, max_size=5)},
    optional={
        "tools": st.lists(
            st.fixed_dictionaries({"type": st.just("function"), "function": FUNCTIONS}),
            min_size=1,  # of an empty list the router does not claim to know anything
            max_size=2,
        ),
        "add_generation_prompt": st.booleans(),
        "add_special_tokens": st.booleans(),
        "continue_final_message": st.booleans(),
        "reasoning_effort": st.sampled_from(["none", "low"]),
        "chat_template_kwargs": st.just({"enable_thinking": False}),
    },
)


class Both:
    """One model folder, read by the simulator and by the router."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.simulator = Folder(path)
        self.router = Exact(Templated(read_folder(path), load(path)[0]))


@pytest.fixture(scope="module", params=[CHATML + TOOLS, PARTS + TOOLS], ids=["texts", "parts"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Both:
    """Folders with a template that takes contents as text, and with one that iterates over
    parts."""
    return Both(make_folder(tmp_path_factory.mktemp("model"), request.param))


@settings(deadline=None)  # a busy machine says nothing about tokens
@given(REQUESTS)
def test_both_make_the_same_tokens(both: Both, asked: dict[str, Any]) -> None:
    """The tokens are the same, and the router knows none only of what the simulator refuses."""
    body = json.dumps(asked).encode()
    ours = theirs = None
    with suppress(Unlike):
        ours = both.router.ids(CHAT, body)
    with suppress(ApiError):
        theirs = _chat_tokens(both.simulator, decode(body, bodies.Chat)).tobytes()
    assert ours == theirs
