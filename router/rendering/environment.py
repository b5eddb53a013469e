"""The Jinja environment of chat templates, as in Transformers, so that the text is the same.

See its utils/chat_template_utils.py, `_compile_jinja_template`.
"""

import json
from datetime import datetime
from itertools import islice

import jinja2
from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro

from router.rendering.sandbox import Bounded
from router.rendering.watch import WATCH, Watch

#: Most characters of one level's indent, and the pieces of JSON between two checks of its length.
_INDENT, _PIECES = 64, 256


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


def make_environment() -> Bounded:
    """Return a new environment."""
    environment = Bounded(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _now
    return environment


@pass_context
def _to_json(  # noqa: PLR0917 - Transformers' signature
    context: Context,
    value: object,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    if indent is None:
        return encoder.encode(value)
    # Each level of a client's value is indented further, which adds up if there are many.
    if (indent if isinstance(indent, int) else len(indent)) > _INDENT:
        raise SecurityError("a value would be too large")
    watch: Watch = context.parent[WATCH]
    said, pieces = "", encoder.iterencode(value)
    while some := "".join(islice(pieces, _PIECES)):
        said += some
        watch.measure(len(said))
    return said


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)  # noqa: DTZ005 - local time, as in the engine
