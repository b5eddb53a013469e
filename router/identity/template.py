"""A model's chat template: conversation in, text out, as Transformers renders it.

Templates are programs. They come from the model folders that the operator named, never from a
request, and run in Jinja's immutable sandbox: no attributes that lead out, no changing of what they
are given, `range` bounded. A rendering has a bound in characters, and one in seconds that is looked
at whenever the template writes something. The environment is the one of Transformers
(utils/chat_template_utils.py, `_compile_jinja_template`), so that the text is the same.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from time import monotonic
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

from router.identity.content_format import wants_parts
from router.identity.unlike import Unlike

#: Seconds that one rendering may take.
PATIENCE_S = 2.0
#: Stands where the text of the last message ends, while that is to be continued.
_END = "CONTINUE_FINAL_MESSAGE_TAG "
#: Keywords that are fields of a request too; engines let the one or the other win.
_FIELDS = frozenset(("conversation", "messages", "tools", "documents", "chat_template", "tokenize"))


class _Generation(Extension):
    """`{% generation %}` marks what the assistant said; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        """Read up to `{% endgeneration %}`."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_same"), [], [], body).set_lineno(line)

    def _same(self, caller: Macro) -> str:
        return str(caller())


class ChatTemplate:
    """One compiled template. Raises jinja2.TemplateError if it cannot be compiled."""

    def __init__(self, text: str, special_tokens: Mapping[str, str]) -> None:
        environment = _environment()
        tree = environment.parse(text)
        self._template = environment.from_string(text)
        self._special_tokens = dict(special_tokens)
        self._variables = meta.find_undeclared_variables(environment.parse(text))
        self._knows_developer = '"developer"' in text or "'developer'" in text
        self._continues = "content" in text
        self.wants_parts = wants_parts(tree)
        """Contents are lists of parts, not texts."""

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        more: Mapping[str, Any] | None = None,
        limit: int = 1 << 25,
        clock: Callable[[], float] = monotonic,
    ) -> str:
        """Return the prompt's text, at most `limit` characters. Raises Unlike.

        `more` are the request's own keywords; those that the template does not name are left out.
        """
        if continue_final_message and add_generation_prompt:
            raise Unlike("continues and begins a message")
        if not messages:
            raise Unlike("no messages")
        if more and not _FIELDS.isdisjoint(more):
            raise Unlike("odd template keywords")
        conversation = messages if self._knows_developer else _without_developers(messages)
        if continue_final_message:
            conversation, last = self._to_continue(conversation)
        keywords = {
            **self._special_tokens,
            **{name: value for name, value in (more or {}).items() if name in self._variables},
            "messages": conversation,
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
        }
        text = self._run(keywords, limit, clock)
        return _cut(text, last) if continue_final_message else text

    def _run(self, keywords: Mapping[str, Any], limit: int, clock: Callable[[], float]) -> str:
        pieces: list[str] = []
        length, deadline = 0, clock() + PATIENCE_S
        try:
            for piece in self._template.generate(**keywords):
                pieces.append(piece)
                length += len(piece)
                if length > limit:
                    raise Unlike("rendered too long")
                if clock() > deadline:
                    raise Unlike("rendered too slowly")
        except Unlike:
            raise
        except jinja2.TemplateError:
            raise Unlike("refused by the template") from None
        except Exception:  # noqa: BLE001 - a template may do whatever Python's operators do
            raise Unlike("a fault of the template") from None
        return "".join(pieces)

    def _to_continue(
        self, messages: Sequence[Mapping[str, Any]]
    ) -> tuple[Sequence[Mapping[str, Any]], str]:
        """Mark the end of the last message's text; return that text too."""
        *before, message = messages
        content = message.get("content")
        if not self._continues or content is None:
            raise Unlike("nothing to continue")
        if isinstance(content, str):
            return [*before, {**message, "content": content + _END}], content
        parts = list(content)
        for place in range(len(parts) - 1, -1, -1):
            if "text" in parts[place]:
                text: str = parts[place]["text"]
                parts[place] = {**parts[place], "text": text + _END}
                return [*before, {**message, "content": parts}], text
        raise Unlike("nothing to continue")


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _now
    return environment


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


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)  # noqa: DTZ005 - local time, as the engine takes it


def _cut(text: str, last: str) -> str:
    """Cut off all that follows the last message's text."""
    tag = _END.strip()
    if last.strip() not in text or tag not in text:
        raise Unlike("nothing to continue")
    at = text.rindex(tag)
    if text[at : at + len(_END)] == _END:
        return text[:at]
    return text[:at].rstrip()  # the template trims, so the text did not end there either


def _without_developers(messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Make developers' messages the system's, all of these one and the first (vLLM
    renderers/hf.py), for templates that know of no developer."""
    if not any(message["role"] == "developer" for message in messages):
        return messages
    changed: list[Mapping[str, Any]] = []
    for message in messages:
        if message["role"] == "developer":
            kept = {name: value for name, value in message.items() if name != "tools"}
            changed.append({**kept, "role": "system"})
        else:
            changed.append(message)
    systems = [place for place, message in enumerate(changed) if message["role"] == "system"]
    if systems == [0]:
        return changed
    texts = [_text(changed[place].get("content", "")) for place in systems]
    merged = {"role": "system", "content": "\n\n".join(text for text in texts if text)}
    return [merged, *(message for message in changed if message["role"] != "system")]


def _text(content: Any) -> str:
    if not isinstance(content, list):
        return content or ""
    return "\n".join(part["text"] for part in content if "text" in part)
