"""Generated conversations of all kinds, as clients could send them."""

import json
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from router.rendering.probes import SAMPLES

Body = dict[str, Any]
Bodies = SearchStrategy[Body]

#: User input that templates and tokenizers could take for markup.
_ODD = (
    *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|begin_of_text|>", "<|eot_id|>"),
    *("<|start_header_id|>", "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[IMG]"),
    *("<think>", "</think>\n", "<tool_call>", "<tool_response>", "</tool_response>"),
    *("x-anthropic-billing-header: a\nrest", "CONTINUE_FINAL_MESSAGE_TAG ", "{{ 1 }}", "{% if %}"),
    *("\n", "\n\n", " ", "  ", "\t", "", "don't", "東京", "привет", "👍🏽", "é", "e\u0301"),
    *("\u00a0", "\u200b", "\x00", "0123456789", "\ufeff"),
)
_words = st.one_of(
    st.sampled_from(_ODD),
    st.sampled_from([sample[:60] for sample in SAMPLES]),
    st.text(max_size=6),
    st.text("abc XYZ019.,'\n", max_size=12),
)
texts = st.lists(_words, max_size=6).map("".join)
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
).filter(lambda value: "Infinity" not in json.dumps(value))
_more = st.dictionaries(st.sampled_from(["zz", "cache_control", "index", "x y"]), _values)


def often(
    usual: SearchStrategy[Any], seldom: SearchStrategy[Any], times: int = 6
) -> SearchStrategy[Any]:
    """Mostly the first strategy, and the second now and then."""
    return st.integers(0, times).flatmap(lambda turn: usual if turn else seldom)


def shuffled(fields: SearchStrategy[Body], more: SearchStrategy[Body] | None = None) -> Bodies:
    """The same fields in any order, mixed with some unknown ones."""

    @st.composite
    def make(draw: DrawFn) -> Body:
        found = {**draw(more or often(st.just({}), _more, 5)), **draw(fields)}
        return {name: found[name] for name in draw(st.permutations(list(found)))}

    return make()


_parts = often(
    shuffled(st.fixed_dictionaries({"type": st.just("text"), "text": texts})),
    st.one_of(
        texts,
        st.fixed_dictionaries({"type": st.just("refusal"), "refusal": texts}),
        st.fixed_dictionaries({"type": st.just("input_text"), "text": texts}),
        st.fixed_dictionaries({"type": st.just("text"), "text": st.none()}),
    ),
)
_contents = often(texts, st.lists(_parts, max_size=3), 1)
_arguments = st.dictionaries(texts, _values, max_size=3).map(json.dumps) | st.sampled_from(
    ["", "{", "[]", "42", "null", '{"a": 1, "a": 2}']
)
_calls = shuffled(
    st.fixed_dictionaries(
        {
            "id": often(st.just("abcdefghi"), st.just("call_0123456789"), 8),
            "type": st.just("function"),
            "function": shuffled(st.fixed_dictionaries({"name": texts, "arguments": _arguments})),
        }
    )
)
_schemas = st.fixed_dictionaries(
    {"type": st.just("object"), "properties": st.dictionaries(texts, _values, max_size=3)}
)
_tools = shuffled(
    st.fixed_dictionaries(
        {
            "type": st.just("function"),
            "function": shuffled(
                st.fixed_dictionaries(
                    {"name": texts},
                    optional={
                        "description": texts | st.none(),
                        "parameters": _schemas | st.none(),
                        "strict": st.booleans() | st.none(),
                    },
                )
            ),
        }
    )
)
_keywords = st.dictionaries(
    st.sampled_from(
        ["enable_thinking", "style", "date_string", "tools_in_user_message", "unknown", "padding"]
    ),
    st.sampled_from([None, "auto", True, False, "26 Jul 2024"]) | texts,
    max_size=3,
)


def _says(role: str, contents: SearchStrategy[Any] = _contents, **more: Any) -> Bodies:
    needed = {"role": st.just(role), "content": contents}
    return shuffled(st.fixed_dictionaries(needed, optional=more))


_users = _says("user", name=texts)
_systems = st.sampled_from(["system", "system", "developer"]).flatmap(_says)
_assistants = often(
    _says("assistant"),
    _says(
        "assistant",
        often(_contents, st.none(), 2),
        tool_calls=st.lists(_calls, max_size=2),
        reasoning=texts,
        name=texts,
    ),
    2,
)
_results = _says("tool", tool_call_id=st.just("abcdefghi"))


@st.composite
def free(draw: DrawFn) -> Body:
    """Messages in any order, with everything a request may say about how they become a prompt."""
    messages = draw(st.lists(_systems, max_size=1))
    for _ in range(draw(st.integers(1, 3))):
        messages += [draw(_users), draw(_assistants)]
        messages += draw(often(st.just([]), st.lists(_results | _systems, max_size=1), 3))
    if draw(st.integers(0, 3)):
        messages.append(draw(_users))
    body: Body = {"messages": messages, **draw(_wishes)}
    if draw(st.integers(0, 2)) == 0:
        body["tools"] = draw(st.lists(_tools, min_size=1, max_size=2))
    if draw(st.integers(0, 2)) == 0:
        body["chat_template_kwargs"] = draw(_keywords)
    return body


_wishes = st.sampled_from(
    [
        *([{}] * 4),
        {"add_generation_prompt": False},
        {"add_generation_prompt": False, "continue_final_message": True},
        {"add_special_tokens": True},
    ]
)


@st.composite
def orderly(draw: DrawFn) -> Body:
    """Users and assistants in turn, and tool calls with their results: what all templates
    accept."""
    messages = draw(st.lists(_says("system"), max_size=1))
    for _ in range(draw(st.integers(0, 3))):
        messages.append(draw(_users))
        if draw(st.integers(0, 2)) == 0:
            call = {**draw(_calls), "id": "abcdefghi"}
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
            messages.append({**draw(_results), "tool_call_id": "abcdefghi"})
        messages.append(draw(_says("assistant", texts.filter(bool))))
    messages.append(draw(_users))
    body: Body = {"messages": messages}
    if draw(st.booleans()):
        body["tools"] = draw(st.lists(_tools, min_size=1, max_size=2))
    return body


#: Chats of either kind.
chats: Bodies = st.one_of(free(), orderly())
#: Plain texts, with special tokens such as BOS or without.
completions: Bodies = st.fixed_dictionaries(
    {"prompt": texts}, optional={"add_special_tokens": st.booleans()}
)
