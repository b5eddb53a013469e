"""The client's own helpers for streams and schemas: their pieces must arrive in order."""

import json
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.sdk.conftest import MODEL, MakeScripted
from tests.sdk.documents import (
    DONE,
    delta,
    document,
    event,
    message,
    response,
    response_events,
    stream,
)
from tests.support import Action

ASKED: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "When?"}]}


class Meeting(BaseModel):
    """The object that the model should fill in."""

    title: str
    people: list[str]


WHOLE = '{"title": "Kaffee \\u2615 um vier", "people": ["Ada", "Łukasz"]}'
EXPECTED = Meeting(title="Kaffee ☕ um vier", people=["Ada", "Łukasz"])
PIECES = [WHOLE[at : at + 7] for at in range(0, len(WHOLE), 7)]
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "invite",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"title": {"type": "string"}},
            "required": ["title"],
            "additionalProperties": False,
        },
    },
}


def chat_stream(*deltas: dict[str, Any], finish: str = "stop") -> list[Action]:
    """Return a stream of these deltas, a finish reason, the usage and the end, cut within
    events."""
    usage = {**delta(), "choices": [], "usage": message("")["usage"]}
    events = [*(delta(**d) for d in deltas), delta(finish=finish), usage]
    whole = b"".join(map(event, events)) + DONE
    return stream(*(whole[at : at + 61] for at in range(0, len(whole), 61)))


def sent(asked: bytes, *path: str) -> Any:
    """Return a field of the body that the worker received."""
    found = json.loads(asked)
    for name in path:
        found = found[name]
    return found


def test_parse(scripted: MakeScripted) -> None:
    """The schema reaches the worker, and its answer becomes an object of that class."""
    scene = scripted(document(message(WHOLE)))
    answer = scene.caller.call("chat.completions.parse", response_format=Meeting, **ASKED)
    assert answer.choices[0].message.parsed == EXPECTED
    schema = sent(scene.asked, "response_format", "json_schema", "schema")
    assert set(schema["properties"]) == {"title", "people"}


def test_parse_of_half_an_answer(scripted: MakeScripted) -> None:
    """An answer cut by its token limit raises the client's own error."""
    short = message('{"title": ')
    short["choices"][0]["finish_reason"] = "length"
    scene = scripted(document(short))
    with pytest.raises(openai.LengthFinishReasonError) as caught:
        scene.caller.call("chat.completions.parse", response_format=Meeting, **ASKED)
    usage = caught.value.completion.usage
    assert usage is not None
    assert usage.prompt_tokens == 21


def test_parse_of_tool_calls(scripted: MakeScripted) -> None:
    """The arguments of tool calls are parsed too."""
    function = {"name": "invite", "arguments": '{"title": "Tee"}'}
    called = message(None, tool_calls=[{"id": "c1", "type": "function", "function": function}])
    scene = scripted(document(called))
    answer = scene.caller.call("chat.completions.parse", tools=[TOOL], **ASKED)
    call = answer.choices[0].message.tool_calls[0]
    assert call.function.parsed_arguments == {"title": "Tee"}
    assert sent(scene.asked, "tools") == [TOOL]


def test_stream_helper(scripted: MakeScripted) -> None:
    """Its events build up the text, and end with the object."""
    scene = scripted(
        chat_stream({"role": "assistant", "content": ""}, *({"content": p} for p in PIECES))
    )
    events = scene.caller.events("chat.completions.stream", response_format=Meeting, **ASKED)
    assert [e.delta for e in events if e.type == "content.delta" and e.delta] == PIECES
    (done,) = (e for e in events if e.type == "content.done")
    assert done.content == WHOLE
    assert done.parsed == EXPECTED
    usage = [e.chunk.usage for e in events if e.type == "chunk" and e.chunk.usage]
    assert usage[0].prompt_tokens_details.cached_tokens == 16
    assert sent(scene.asked, "stream") is True


def test_stream_helper_with_tools(scripted: MakeScripted) -> None:
    """The arguments of a tool call arrive in pieces, and are complete at the end."""
    first: dict[str, Any] = {"index": 0, "id": "c1", "type": "function"}
    pieces = ['{"ti', 'tle": "T', 'ee"}']
    calls: list[dict[str, Any]] = [
        {**(first if not number else {"index": 0}), "function": {"arguments": piece}}
        for number, piece in enumerate(pieces)
    ]
    calls[0]["function"]["name"] = "invite"
    scene = scripted(chat_stream(*({"tool_calls": [call]} for call in calls), finish="tool_calls"))
    events = scene.caller.events("chat.completions.stream", tools=[TOOL], **ASKED)
    (done,) = (e for e in events if e.type == "tool_calls.function.arguments.done")
    assert done.parsed_arguments == {"title": "Tee"}
    assert done.name == "invite"


def test_responses_parse(scripted: MakeScripted) -> None:
    """The same for the Responses API."""
    scene = scripted(document(response(WHOLE)))
    answer = scene.caller.call("responses.parse", model=MODEL, input="When?", text_format=Meeting)
    assert answer.output_parsed == EXPECTED
    assert sent(scene.asked, "text", "format", "name") == "Meeting"


def test_responses_stream_helper(scripted: MakeScripted) -> None:
    """Its events build up the text, and end with the parsed response."""
    scene = scripted(stream(*response_events(*PIECES)))
    events = scene.caller.events(
        "responses.stream", model=MODEL, input="When?", text_format=Meeting
    )
    deltas = [e.delta for e in events if e.type == "response.output_text.delta"]
    assert deltas == PIECES
    assert events[-1].type == "response.completed"
    assert events[-1].response.output_parsed == EXPECTED
