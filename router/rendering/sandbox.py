"""The sandbox of chat templates, which limits the time and memory that they may take.

The output of a template can be measured as it grows. Loops that write nothing, and values that
double, have to be stopped from inside. New values come from filters, calls and a few operators.
Each of these reports to a `Watch`, either here or through calls that `looks` puts into the
template. What a template writes stays the same.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from types import BuiltinMethodType, GeneratorType
from typing import Any, TypeAlias, cast

import jinja2
from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from router.rendering.errors import Unlike
from router.rendering.filters import (
    compare,
    cut,
    each,
    keep,
    listed,
    refuse,
    round_,
    say,
    sum_,
    trim,
    turn,
    within,
)
from router.rendering.looks import COMPARE, CUT, KEEP, SAY, TURN, WITHIN, with_looks
from router.rendering.watch import BITS, WATCH, Watch

_Test: TypeAlias = Callable[..., Any]

#: Longest template in characters: about five times the longest in use.
LONGEST = 128 << 10
#: Attributes of dicts: for these names, as in `message.items`, Jinja's own lookup applies.
_OF_DICTS = frozenset(dir(dict))
#: Filters and methods whose result may be much longer than their input, because an argument gives
#: its width.
_WIDENING = frozenset(
    (
        *("batch", "center", "expandtabs", "indent", "ljust", "rjust", "slice", "to_bytes"),
        "zfill",
    )
)
#: Those that insert other values into a value.
_MULTIPLYING = frozenset(("format", "format_map", "join", "replace", "translate"))
#: Methods that may search for another value at each character.
_SEEKING = frozenset(("lstrip", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "strip"))
#: Encodings that go character by character, and ways to handle characters that they lack.
_CODES = frozenset(("utf-8", "utf8", "ascii", "strict", "ignore", "replace"))
_CODING = frozenset(("decode", "encode"))
#: Methods whose arguments are checked before the call.
_COSTLY = _WIDENING | _MULTIPLYING | _SEEKING | _CODING
#: Filters, then methods, that create nothing new and take no time.
_FINDING = frozenset(("attr", "count", "d", "default", "first", "last", "length"))
_ASKING = frozenset(
    ("endswith", "find", "get", "index", "isdigit", "items", "keys", "startswith", "values")
)
#: Tests that compare values.
_COMPARING = (
    *("==", "!=", "<", "<=", ">", ">=", "eq", "equalto", "ge", "greaterthan", "gt", "in", "le"),
    *("lessthan", "lt", "ne"),
)
#: Filters that no prompt needs, and that are slow or give an unpredictable result.
_REFUSED = ("pprint", "random", "striptags", "urlize", "wordwrap")
#: A field of `%` without width or precision.
_FIELD = re.compile(r"%(?:\([^()]*\))?[A-Za-z%]")
#: A field of `format` that contains a long number or another field.
_WIDE_FIELD = re.compile(r"\{[^{}]*(?:\d{3}|\{)")


class Bounded(ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox with limits. Its templates find their watch under `WATCH`."""

    intercepted_binops = frozenset(("*", "**", "%", "//"))
    #: Longest output of a macro or a block, in characters.
    largest = 1 << 25

    @staticmethod
    def concat(pieces: Iterable[str]) -> str:
        """Join the output of a macro or a block. Raises SecurityError."""
        said = pieces if isinstance(pieces, list) else list(pieces)
        if sum(map(len, said)) > Bounded.largest:
            raise SecurityError("a value would be too large")
        return "".join(said)

    def getattr(self, obj: Any, attribute: str) -> Any:  # noqa: ANN401 - Jinja's signature
        """Look up an attribute or an item.

        Most lookups in templates are of a dict's items; these are found directly, without Jinja's
        raised and caught exception.
        """
        if type(obj) is dict and attribute not in _OF_DICTS:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - Jinja's signature
        """Call a macro, a method or a function. Raises SecurityError, Unlike."""
        watch: Watch = context.parent[WATCH]
        name = getattr(obj, "__name__", "")
        if name in _COSTLY:
            if name == "join":
                args = tuple(map(listed, args))
            _check_call(watch, name, obj, args, kwargs)
        if type(obj) is not BuiltinMethodType:
            watch.turn()  # it may call others
            made = super().call(context, obj, *args, **kwargs)
        else:  # needs none of Jinja's checks
            kwargs.pop("_loop_vars", None)
            kwargs.pop("_block_vars", None)
            made = obj(*args, **kwargs)
            if name in _ASKING:
                watch.turn()
                return made
        watch.keep(made)
        return made

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:  # noqa: ANN401 - Jinja's signature
        """Apply the operator. Raises SecurityError, Unlike."""
        watch: Watch = context.parent[WATCH]
        if isinstance(left, int) and isinstance(right, int):
            sizes = left.bit_length(), right.bit_length()
            bits = sizes[0] * right if operator == "**" else sum(sizes)
            if bits > BITS:
                raise SecurityError("a value would be too large")
        elif operator == "*":
            for one, other in ((left, right), (right, left)):
                if isinstance(one, Sized) and isinstance(other, int):
                    watch.charge(watch.weigh(one) * max(other, 0))
        elif operator == "%" and isinstance(left, str):
            _check_form(watch, left, right)
        return super().call_binop(context, operator, left, right)

    def compiled(self, text: str) -> jinja2.Template:
        """Compile a template that reports to its watch; once for each environment.

        Raises jinja2.TemplateError, and what Python raises if nesting is too deep.
        """
        if len(text) > LONGEST:
            raise jinja2.TemplateError(f"it is over {LONGEST >> 10} KiB")
        self.filters.update(dict.fromkeys(_REFUSED, refuse))
        self.filters["round"] = round_
        self.filters.update({name: _bounded(name, one) for name, one in self.filters.items()})
        self.filters |= {"sum": sum_, "trim": trim, TURN: turn, KEEP: keep, CUT: cut, SAY: say}
        self.filters |= {COMPARE: compare, WITHIN: within}
        self.tests |= {name: _compared(cast("_Test", self.tests[name])) for name in _COMPARING}
        self.globals["lipsum"] = refuse
        try:
            tree = with_looks(self.parse(text))
            nodes.Node.set_environment(tree, self)
            code = self.compile(tree, "chat template", "chat template")
        except ValueError:
            raise jinja2.TemplateError("a number in it is too long") from None
        return self.template_class.from_code(self, code, self.make_globals(None))


def run(template: jinja2.Template, keywords: Mapping[str, Any], watch: Watch) -> str:
    """Return a template's output. Raises Unlike, and what templates raise."""
    pieces: list[str] = []
    left = watch.limit
    # Loops and calls check the clock themselves; without them there are few pieces.
    for piece in template.generate({**keywords, WATCH: watch}):
        pieces.append(piece)
        left -= len(piece)
        if left < 0:
            raise Unlike("rendered too long")
    return "".join(pieces)


def _check_form(watch: Watch, form: str, given: object) -> None:
    if "%" in _FIELD.sub("", form):
        raise SecurityError("a value would be too large")
    watch.charge(form.count("%") * watch.weigh(given))


def _check_call(
    watch: Watch, name: str, method: object, args: Sequence[object], kwargs: Mapping[str, object]
) -> None:
    # Jinja wraps `format` methods.
    value = getattr(getattr(method, "__wrapped__", method), "__self__", "")
    if name.startswith("format") and _WIDE_FIELD.search(str(value)):
        raise SecurityError("a value would be too large")
    more = [kwargs[one] for one in kwargs if one not in {"_loop_vars", "_block_vars"}]
    if name in _CODING and not _CODES.issuperset([*args, *more]):
        raise SecurityError("an encoding that no prompt needs")
    (watch.widened if name in _WIDENING else watch.product)(value, [*args, *more])


def _bounded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the filter with its cost limited.

    As it takes the context, Jinja does not evaluate it at compile time either.
    """
    if name in _FINDING:
        return function
    passing = getattr(getattr(function, "jinja_pass_arg", None), "name", "")

    @pass_context
    def filtered(context: Context, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - any filter
        watch: Watch = context.parent[WATCH]
        watch.turn()
        if args:
            if name == "join":
                args = (listed(args[0]), *args[1:])
            watch.cut(args[0])  # going through the input takes time too
            more = [*args[1:], *kwargs.values()]
            if name == "format":
                _check_form(watch, str(args[0]), more)
            if name in _WIDENING:
                watch.widened(args[0], more)
            elif name in _MULTIPLYING:
                watch.product(args[0], more)
        if passing:
            first = {"eval_context": context.eval_ctx, "environment": context.environment}
            made = function(first.get(passing, context), *args, **kwargs)
        else:
            made = function(*args, **kwargs)
        if type(made) is GeneratorType:
            return each(watch, made)
        watch.keep(made)
        return made

    return filtered


def _compared(test: _Test) -> _Test:
    """Return the test with its cost limited."""

    @pass_context
    def tested(context: Context, value: object, other: object) -> Any:  # noqa: ANN401 - any test
        compare(context, value)
        return test(value, within(context, other))

    return tested
