"""A model's own chat template, rendered as Transformers does."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

from simulator.http.errors import bad_request
from simulator.model.conversation import Conversation, Message, prepared, prepared_tools

#: Marker after the last text of a message that is to be continued. It ends with a space, which
#: is missing from the rendered prompt if the template strips the text.
_HERE = "\x02the message goes on here\x03 "


class ChatTemplate:
    """One chat template. Raises ValueError if it is not valid Jinja."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals.update(raise_exception=_raise, strftime_now=_now)
        try:
            tree = environment.parse(source)
            self._wants_parts = _goes_through_parts(tree)
            self._variables = meta.find_undeclared_variables(tree)
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ValueError(f"not a valid chat template: {error}") from None
        self._special_tokens = dict(special_tokens)
        self._knows_developers = "'developer'" in source or '"developer"' in source

    def render(self, asked: Conversation) -> str:
        """The prompt's text; raises ApiError 400 with the template's message if it refuses."""
        if asked.continue_final_message and asked.add_generation_prompt:
            raise bad_request("A message cannot be continued and another one begun.")
        messages = prepared(asked.messages, parts=self._wants_parts)
        if not self._knows_developers:
            messages = _one_system(messages)
        if asked.continue_final_message:
            messages[-1] = _marked(messages[-1])
        variables = {
            **self._special_tokens,
            **{name: value for name, value in asked.keywords.items() if name in self._variables},
            "messages": messages,
            "tools": prepared_tools(asked.tools),
            "documents": asked.documents,
            "add_generation_prompt": asked.add_generation_prompt,
        }
        try:
            text = self._template.render(variables)
        except Exception as error:  # noqa: BLE001 - a template may do whatever Python's operators do
            raise bad_request(str(error)) from None
        return _up_to_mark(text) if asked.continue_final_message else text


class _Generation(Extension):
    """`{% generation %}`, which marks answers for training and adds no text of its own."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        """Parse the block into a node that renders its content."""
        line = next(parser.stream).lineno
        content = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_content"), [], [], content).set_lineno(line)

    def _content(self, caller: Macro) -> str:
        return str(caller())


def _goes_through_parts(tree: nodes.Template) -> bool:
    """Whether the template loops over a message's content, so wants it as a list of parts."""
    return any(_is_content(loop.iter) for loop in tree.find_all(nodes.For))


def _is_content(node: nodes.Node) -> bool:
    while isinstance(node, nodes.Filter) and node.node is not None:
        node = node.node
    match node:
        case nodes.Name(name="content") | nodes.Getattr(attr="content"):
            return True
        case nodes.Getitem(arg=nodes.Const(value="content")):
            return True
    return False


def _one_system(messages: list[Message]) -> list[Message]:
    """Turn developer messages into system messages, merged into one that comes first."""
    if all(message["role"] != "developer" for message in messages):
        return messages
    systems = [one for one in messages if one["role"] in ("system", "developer")]
    others = [one for one in messages if one["role"] not in ("system", "developer")]
    if systems == messages[:1]:
        first = {name: value for name, value in messages[0].items() if name != "tools"}
        return [{**first, "role": "system"}, *others]
    said = [text for one in systems if (text := _joined(one["content"]))]
    return [{"role": "system", "content": "\n\n".join(said)}, *others]


def _joined(content: str | Sequence[Message]) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def _marked(message: Message) -> Message:
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": content + _HERE}
    if not content:
        raise bad_request("There is nothing to continue.")
    last = content[-1]
    return {**message, "content": [*content[:-1], {**last, "text": last["text"] + _HERE}]}


def _up_to_mark(text: str) -> str:
    at = text.rfind(_HERE.rstrip())
    if at < 0:
        raise bad_request("The chat template leaves the last message out.")
    return text[:at] if text.startswith(_HERE, at) else text[:at].rstrip()


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise(message: Any) -> None:  # noqa: ANN401 - any value of the template
    raise jinja2.TemplateError(str(message))


def _now(form: str) -> str:
    return datetime.now().strftime(form)  # noqa: DTZ005 - the template asks for local time
