"""The sandbox of chat templates: Jinja's immutable one, with what Transformers adds to it.

Templates are programs. They come from the model folders that the operator named, never from a
request. The sandbox gives them no attribute that leads outside, no way to change their input, and
ranges of at most 100,000 numbers. Compiling a template computes nothing of it. Its output is
capped, but what it computes on the way is not: a template that was not seen yet is tried in a
process of its own first (`tokenizers/loader.py`).

The text is as in Transformers (utils/chat_template_utils.py, `_compile_jinja_template`).
"""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

from router.rendering.messages import NotReproducible

#: Longest template in characters: about five times the longest in use.
MAX_TEMPLATE_CHARS = 128 << 10
#: What Python raises if a template is nested too deeply to compile.
TOO_DEEP = (RecursionError, MemoryError, OverflowError, SyntaxError)
#: Why a prompt is not known whose template writes more than it may.
TOO_LONG = "rendered too long"

#: Attributes of dicts: for these names, as in `message.items`, Jinja's own lookup applies.
_OF_DICTS = frozenset(dir(dict))


class _Generator(CodeGenerator):
    """Leaves constant expressions to the rendering: they may take any time and memory."""

    def _output_child_to_const(self, node: nodes.Expr, frame: Any, finalize: Any) -> str:  # noqa: ANN401 - Jinja's signature
        if not isinstance(node, nodes.Const | nodes.TemplateData):
            raise nodes.Impossible
        return super()._output_child_to_const(node, frame, finalize)


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox, with the extension for `break` and `continue`."""

    code_generator_class = _Generator

    def __init__(self, *extensions: type[Extension]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            extensions=[*extensions, loopcontrols],
        )

    def getattr(self, obj: Any, attribute: str) -> Any:  # noqa: ANN401 - Jinja's signature
        """Look up an attribute or an item.

        Most lookups in templates are of a dict's items; these are found directly, without Jinja's
        raised and caught exception.
        """
        if type(obj) is dict and attribute not in _OF_DICTS:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def compiled(self, text: str) -> jinja2.Template:
        """Compile a template. Raises jinja2.TemplateError or `TOO_DEEP`."""
        if len(text) > MAX_TEMPLATE_CHARS:
            raise jinja2.TemplateError(f"it is over {MAX_TEMPLATE_CHARS >> 10} KiB")
        try:
            return self.from_string(text)
        except ValueError:
            raise jinja2.TemplateError("a number in it is too long") from None


class _Generation(Extension):
    """`{% generation %}` marks the assistant's text; it does not change the output."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's declaration

    def parse(self, parser: Parser) -> nodes.Node:
        """Parse up to `{% endgeneration %}`."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_same"), [], [], body).set_lineno(line)

    def _same(self, caller: Macro) -> str:
        return str(caller())


def make_sandbox() -> Sandbox:
    """Return a sandbox in which a template finds all that Transformers gives it."""
    sandbox = Sandbox(_Generation)
    sandbox.filters["tojson"] = _to_json
    sandbox.globals["raise_exception"] = _raise
    sandbox.globals["strftime_now"] = _now
    return sandbox


def render(template: jinja2.Template, variables: Mapping[str, Any], max_chars: int) -> str:
    """Return a template's output. Raises NotReproducible, and what templates raise."""
    pieces: list[str] = []
    left = max_chars
    try:
        for piece in template.generate(variables):
            pieces.append(piece)
            left -= len(piece)
            if left < 0:
                raise NotReproducible(TOO_LONG)
    except MemoryError:
        raise NotReproducible(TOO_LONG) from None
    return "".join(pieces)


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


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)  # noqa: DTZ005 - local time, as in the engine
