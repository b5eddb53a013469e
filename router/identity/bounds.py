"""Bounds on what a chat template may cost, built into it as it is compiled.

A template writes as it goes, so its output can be looked at while it grows; but loops that write
nothing, and texts that double, have to be stopped from inside. So each turn of a loop and each call
of a macro looks at a `Watch`, and each value that is kept is measured. What the template says stays
the same.
"""

from collections.abc import Callable, Sized
from typing import Any, cast

from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from router.identity.unlike import Unlike

#: What `message.items` and the like are: not items of an object.
_OF_DICTS = frozenset(dir(dict))
#: Turns of loops between two looks at the clock.
TURNS = 64
#: The name by which a template finds its watch.
WATCH = "_watch"
_TURN, _KEEP = "_turn", "_keep"


class Watch:
    """What one rendering may still use."""

    def __init__(self, limit: int, seconds: float, clock: Callable[[], float]) -> None:
        """Let it make values of `limit` characters or items, for `seconds` of `clock`."""
        self._limit = limit
        self._clock = clock
        self._deadline = clock() + seconds
        self._turns = 0

    def turn(self) -> None:
        """One more turn. Raises Unlike when the time is over."""
        self._turns += 1
        if self._turns % TURNS == 0:
            self.look()

    def look(self) -> None:
        """Raise Unlike when the time is over."""
        if self._clock() > self._deadline:
            raise Unlike("rendered too slowly")

    def measure(self, length: int) -> None:
        """Raise Unlike if a value is that long and should not be."""
        if length > self._limit:
            raise Unlike("rendered too long")


class Bounded(ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox; no value may be multiplied into something huge."""

    intercepted_binops = frozenset(("*", "**", "%"))
    #: Of a repeated text, and of the bits of a number.
    largest = 1 << 25

    def getattr(self, obj: Any, attribute: str) -> Any:  # noqa: ANN401 - as Jinja has it
        """Find an attribute or an item. The items of objects are most of what templates look for,
        and are found without an exception that is raised and caught first."""
        if type(obj) is dict and attribute not in _OF_DICTS:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:  # noqa: ANN401 - as Jinja has it
        """Apply the operator. Raises SecurityError."""
        if operator == "*":
            for one, other in ((left, right), (right, left)):
                if isinstance(one, Sized) and isinstance(other, int):
                    self._refuse(len(one) * other > self.largest)
            if isinstance(left, int) and isinstance(right, int):
                self._refuse(left.bit_length() + right.bit_length() > self.largest)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            self._refuse(left.bit_length() * right > self.largest)
        elif operator == "%" and isinstance(left, str):
            self._refuse(_has_width(left))
        return super().call_binop(context, operator, left, right)

    def _refuse(self, condition: bool) -> None:
        if condition:
            raise SecurityError("a value would be too large")


def _has_width(form: str) -> bool:
    """Whether a format may ask for padding: none of those that templates use does."""
    return any(piece[:1].isdigit() or piece[:1] in "*.-+ 0#" for piece in form.split("%")[1:])


def bounded(tree: nodes.Template, environment: Bounded) -> nodes.Template:
    """Return the template's tree with the looks at the watch in it; the given one is changed."""
    environment.filters[_TURN] = _turn
    environment.filters[_KEEP] = _keep
    made = _Looks().visit(tree)
    nodes.Node.set_environment(made, environment)
    return made  # type: ignore[no-any-return]


@pass_context
def _turn(context: Context, value: object) -> object:
    context.parent[WATCH].turn()
    return value


@pass_context
def _keep(context: Context, value: object) -> object:
    if type(value) is str or isinstance(value, Sized):  # texts are nearly all of them
        context.parent[WATCH].measure(len(value))
    return value


class _Looks(NodeTransformer):
    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802 - as Jinja calls it
        self.generic_visit(node)
        node.body.insert(0, _look(node.lineno))
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Macro:  # noqa: N802 - as Jinja calls it
        self.generic_visit(node)
        node.body.insert(0, _look(node.lineno))
        return node

    def visit_Assign(self, node: nodes.Assign) -> nodes.Assign:  # noqa: N802 - as Jinja calls it
        self.generic_visit(node)
        if not isinstance(node.node, nodes.Const):
            node.node = _filtered(node.node, _KEEP, node.lineno)
        return node


def _look(line: int) -> nodes.ExprStmt:
    return nodes.ExprStmt(_filtered(nodes.Const(None), _TURN, line), lineno=line)


def _filtered(node: nodes.Node, name: str, line: int) -> nodes.Filter:
    return nodes.Filter(cast("nodes.Expr", node), name, [], [], None, None, lineno=line)
