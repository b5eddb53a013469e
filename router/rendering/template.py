"""A model's chat template: conversation in, text out, as Transformers renders it.

The template's syntax tree tells whether it takes contents as texts or as lists of parts. Engines
search it for a loop over a message's content (vLLM renderers/hf.py, `_detect_content_format`). The
result here must be the same as theirs, including where they give up: if a loop or an assignment
that matters has a target that is not a plain name.

A last message that is to be continued gets a mark at the end of its text, and the prompt is cut off
there (Transformers utils/chat_template_utils.py, `render_jinja_template`).

Developer messages become system messages for templates that do not know that role (vLLM
renderers/hf.py).
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import jinja2
from jinja2 import meta, nodes

from router.rendering.messages import Json, NotReproducible
from router.rendering.sandbox import make_sandbox, render


class _NoName(Exception):
    """The target of a loop or an assignment is not a plain name."""


def wants_parts(tree: nodes.Template) -> bool:
    """Return true if the template loops over the parts of a message's content."""
    try:
        messages = frozenset(_message_names(tree))
        return any(_loops_over_content(tree, messages))
    except _NoName:
        return False


def _loops_over_content(tree: nodes.Template, messages: AbstractSet[str]) -> Iterator[bool]:
    given = _given_contents(tree, messages)
    in_macros = {id(loop) for macro in tree.find_all(nodes.Macro) for loop in _loops(macro)}
    for loop in _loops(tree):
        name = loop.iter.name if isinstance(loop.iter, nodes.Name) else None
        if (
            _read(loop.iter, "content") in messages
            or name in given.get(id(loop), ())
            or (name == "content" and id(loop) not in in_macros)
        ):
            yield bool(_name(loop.target))


def _message_names(tree: nodes.Template) -> Iterator[str]:
    """Names of a single message: targets of loops over the messages."""
    lists = _same_as(tree, "messages")
    for loop in _loops(tree):
        if _read(loop.iter) in lists:
            yield _name(loop.target)


def _same_as(tree: nodes.Template, name: str) -> AbstractSet[str]:
    """`name`, and the names that it, or a slice or a filtered form of it, is assigned to."""
    targets = defaultdict[str | None, list[nodes.Node]](list)
    for assignment in tree.find_all(nodes.Assign):
        targets[_read(assignment.node)].append(assignment.target)
    names, waiting = {name}, [name]
    while waiting:
        new = set(map(_name, targets[waiting.pop()])) - names
        names |= new
        waiting += new
    return names


def _given_contents(tree: nodes.Template, messages: AbstractSet[str]) -> dict[int, set[str]]:
    """Loops inside macros, by identity, with the macro's parameters that are given a content."""
    parameters: dict[int, set[str]] = {}
    calls = defaultdict[str, list[nodes.Call]](list)
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Name):
            calls[call.node.name].append(call)
    for macro in tree.find_all(nodes.Macro):
        names = [argument.name for argument in macro.args]
        given: set[str] = set()
        for call in calls[macro.name]:
            pairs = [*zip(names, call.args, strict=False)]
            pairs += [(word.key, word.value) for word in call.kwargs if word.key in names]
            given |= {name for name, value in pairs if _read(value, "content") in messages}
        if given:
            parameters |= dict.fromkeys((id(loop) for loop in _loops(macro)), given)
    return parameters


def _loops(root: nodes.Node) -> Iterator[nodes.For]:
    return root.find_all(nodes.For)


def _name(target: nodes.Node) -> str:
    if not isinstance(target, nodes.Name):
        raise _NoName
    return target.name


def _read(node: nodes.Node | None, key: str | None = None) -> str | None:
    """Return the variable that `node` is, or whose item `key` it is, ignoring filters and
    slices."""
    while isinstance(node, nodes.Filter | nodes.Test) or (
        isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
    ):
        node = node.node
    if key is not None:
        node = _with_item(node, key)
    return node.name if isinstance(node, nodes.Name) and node.ctx == "load" else None


def _with_item(node: nodes.Node | None, key: str) -> nodes.Node | None:
    """Return the node whose item `key` this is."""
    if isinstance(node, nodes.Getitem):
        return node.node if isinstance(node.arg, nodes.Const) and node.arg.value == key else None
    return node.node if isinstance(node, nodes.Getattr) and node.attr == key else None


#: Marks where the text of the last message ends.
_END = "CONTINUE_FINAL_MESSAGE_TAG "

Messages = Sequence[Mapping[str, Any]]


def to_continue(messages: Messages) -> tuple[Messages, str]:
    """Mark the end of the last message's text; return the messages and that text.

    Raises NotReproducible.
    """
    *before, message = messages
    content = message.get("content")
    if isinstance(content, str):
        return [*before, {**message, "content": content + _END}], content
    parts = list(content or ())
    for place in range(len(parts) - 1, -1, -1):
        if "text" in parts[place]:
            text: str = parts[place]["text"]
            parts[place] = {**parts[place], "text": text + _END}
            return [*before, {**message, "content": parts}], text
    raise NotReproducible("nothing to continue")


def cut(text: str, last: str) -> str:
    """Cut off everything after the last message's text. Raises NotReproducible."""
    mark = _END.strip()
    if last.strip() not in text or mark not in text:
        raise NotReproducible("nothing to continue")
    at = text.rindex(mark)
    if text[at : at + len(_END)] == _END:
        return text[:at]
    return text[:at].rstrip()  # the template trimmed the mark's space, so it trims the text too


def without_developers(messages: Messages) -> Messages:
    """Turn developer messages into system messages, and merge all of those into one at the
    start."""
    if not any(message["role"] == "developer" for message in messages):
        return messages
    changed = [_as_system(message) for message in messages]
    systems = [place for place, message in enumerate(changed) if message["role"] == "system"]
    if systems == [0]:
        return changed
    texts = [_text(changed[place]["content"]) for place in systems]
    merged = {"role": "system", "content": "\n\n".join(text for text in texts if text)}
    return [merged, *(message for message in changed if message["role"] != "system")]


def _as_system(message: Mapping[str, Any]) -> Mapping[str, Any]:
    if message["role"] != "developer":
        return message
    kept = {name: value for name, value in message.items() if name != "tools"}
    return {**kept, "role": "system"}


def _text(content: Json) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if "text" in part)


#: Keywords that do not just reach the template: engines refuse them, or use them for something that
#: only they can know.
_REFUSED = frozenset(
    (
        "chat_template",
        "conversation",
        "conversations",
        "documents",
        "messages",
        "self",
        "model_config",
        "return_assistant_tokens_mask",
        "tokenize",
        "tokenizer",
        "tools",
    )
)
#: Keywords that engines use themselves: templates never see them.
_SWALLOWED = frozenset(
    (
        "add_generation_prompt",
        "continue_final_message",
        "max_length",
        "padding",
        "return_dict",
        "return_tensors",
        "tokenizer_kwargs",
        "truncation",
    )
)


class ChatTemplate:
    """One compiled template. Raises jinja2.TemplateError or `TOO_DEEP` if it cannot be compiled."""

    def __init__(self, text: str, special_tokens: Mapping[str, str]) -> None:
        self.text = text
        sandbox = make_sandbox()
        self._template = sandbox.compiled(text)
        tree = sandbox.parse(text)
        self.wants_parts = wants_parts(tree)
        """Whether contents are to be lists of parts, not texts."""
        self._variables = meta.find_undeclared_variables(tree)
        self.dated = "strftime_now" in self._variables
        """Whether it may write the time, which may differ from the engine's."""
        self._special_tokens = dict(special_tokens)
        self._knows_developer = '"developer"' in text or "'developer'" in text

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        more: Mapping[str, Any] | None = None,
        max_chars: int = 1 << 25,
    ) -> str:
        """Return the prompt's text, at most `max_chars` characters. Raises NotReproducible.

        `more` are the request's own keywords; those not used by the template are dropped.
        """
        if continue_final_message and add_generation_prompt:
            raise NotReproducible("continues and begins a message")
        if not messages:
            raise NotReproducible("no messages")
        conversation = messages if self._knows_developer else without_developers(messages)
        last = ""
        if continue_final_message:
            if "content" not in self.text:
                raise NotReproducible("nothing to continue")
            conversation, last = to_continue(conversation)
        keywords = {
            **self._special_tokens,
            **self._named(more or {}),
            "messages": conversation,
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            text = render(self._template, keywords, max_chars)
        except NotReproducible:
            raise
        except jinja2.TemplateError:
            raise NotReproducible("refused by the template") from None
        except Exception:  # noqa: BLE001 - a template may do whatever Python's operators do
            raise NotReproducible("a fault of the template") from None
        return cut(text, last) if continue_final_message else text

    def _named(self, more: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keywords that reach the template."""
        if not _REFUSED.isdisjoint(more):
            raise NotReproducible("odd template keywords")
        return {
            name: value
            for name, value in more.items()
            if name in self._variables and name not in _SWALLOWED
        }
