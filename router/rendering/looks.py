"""Inserts calls to the watch into a chat template's tree before it is compiled.

The sandbox watches filters and calls. This covers everything else that creates values or runs for
long: loops, sums, concatenations, slices, lists and dicts, comparisons, and the output of blocks.
"""

from collections.abc import Iterable
from typing import TypeVar, cast

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

#: The inserted filters. In this order, they check the clock, measure a new value, and charge for: a
#: part of a value; output inside a block; a compared value; a searched value.
TURN, KEEP, CUT, SAY = "_turn", "_keep", "_cut", "_say"
COMPARE, WITHIN = "_compare", "_within"
#: Most values added or joined before the total is measured.
AT_ONCE = 16

_Block = TypeVar("_Block", nodes.Macro, nodes.CallBlock, nodes.FilterBlock, nodes.Block)


def with_looks(tree: nodes.Template) -> nodes.Template:
    """Return the tree with the calls inserted; the given tree is changed."""
    return _Looks().visit(tree)  # type: ignore[no-any-return]


class _Looks(NodeTransformer):
    """Methods are named as Jinja requires, by the type of node they visit."""

    def __init__(self) -> None:
        self._kept = 0
        """Number of enclosing blocks, whose output is buffered until they end."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802
        self.generic_visit(node)
        look = nodes.ExprStmt(_filtered(nodes.Const(None), TURN, node), lineno=node.lineno)
        node.body.insert(0, look)
        if node.test is not None:
            node.test = _filtered(node.test, TURN, node)
        return node

    def visit_Output(self, node: nodes.Output) -> nodes.Output:  # noqa: N802
        if self._kept:
            self.generic_visit(node)
            node.nodes = [
                one if _is_constant(one) else _filtered(one, SAY, node) for one in node.nodes
            ]
        else:  # `run` checks each piece
            node.nodes = [self._said(one) for one in node.nodes]
        return node

    def _said(self, node: nodes.Expr) -> nodes.Expr:
        if isinstance(node, nodes.Add):
            self._sum(node)
        elif isinstance(node, nodes.CondExpr):
            node.test = self.visit(node.test)
            node.expr1 = self._said(node.expr1)
            node.expr2 = None if node.expr2 is None else self._said(node.expr2)
        else:
            return cast("nodes.Expr", self.visit(node))
        return node

    def visit_Add(self, node: nodes.Add) -> nodes.Expr:  # noqa: N802
        self._sum(node)
        return node if _is_number(node.left) or _is_number(node.right) else _kept(node)

    def _sum(self, node: nodes.Add) -> int:
        """Insert calls into a sum; return how many values it adds."""
        values = 0
        for side in ("left", "right"):
            one = getattr(node, side)
            count = self._sum(one) if isinstance(one, nodes.Add) else 1
            if not isinstance(one, nodes.Add):
                setattr(node, side, self.visit(one))
            elif count > AT_ONCE:
                setattr(node, side, _kept(one))
                count = 1
            values += count
        return values

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        while len(node.nodes) > AT_ONCE:
            some = [node.nodes[at : at + AT_ONCE] for at in range(0, len(node.nodes), AT_ONCE)]
            node.nodes = [_kept(nodes.Concat(one, lineno=node.lineno)) for one in some]
        return _kept(node)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, CUT, node) if isinstance(node.arg, nodes.Slice) else node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:  # noqa: N802
        self.generic_visit(node)
        sides = [node.expr, *(one.expr for one in node.ops)]
        # A comparison with a constant is as cheap as the constant is short.
        written = [_is_constant(one) for one in sides]
        for at, one in enumerate(node.ops):
            seeks = one.op in {"in", "notin"}
            if not written[at] and (seeks or not written[at + 1]):
                sides[at] = _filtered(sides[at], COMPARE, node)
            if seeks and not written[at + 1]:
                sides[at + 1] = _filtered(sides[at + 1], WITHIN, node)
        node.expr = sides[0]
        for one, side in zip(node.ops, sides[1:], strict=True):
            one.expr = side
        return node

    def visit_List(self, node: nodes.List) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return node if _is_constant(node) else _kept(node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return node if _is_constant(node) else _kept(node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Expr:  # noqa: N802
        self.generic_visit(node)
        return node if node.ctx != "load" or _is_constant(node) else _kept(node)

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.AssignBlock:  # noqa: N802
        self._inside(node.body)
        if node.filter is not None:
            node.filter = self.visit(node.filter)
        node.filter = _kept(node.filter, node)
        return node

    def visit_Macro(self, node: nodes.Macro) -> nodes.Macro:  # noqa: N802
        return self._block(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.CallBlock:  # noqa: N802
        return self._block(node)

    def visit_FilterBlock(self, node: nodes.FilterBlock) -> nodes.FilterBlock:  # noqa: N802
        return self._block(node)

    def visit_Block(self, node: nodes.Block) -> nodes.Block:  # noqa: N802
        return self._block(node)

    def _block(self, node: _Block) -> _Block:
        self._kept += 1
        self.generic_visit(node)
        self._kept -= 1
        return node

    def _inside(self, body: list[nodes.Node]) -> None:
        self._kept += 1
        body[:] = [self.visit(one) for one in body]
        self._kept -= 1


def _is_number(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Const) and isinstance(node.value, int | float)


def _is_constant(node: nodes.Node) -> bool:
    """Whether it is a constant in the template."""
    parts: Iterable[nodes.Node] = ()
    if isinstance(node, nodes.List | nodes.Tuple | nodes.Dict):
        parts = node.items
    elif isinstance(node, nodes.Pair):
        parts = (node.key, node.value)
    elif not isinstance(node, nodes.Const | nodes.TemplateData):
        return False
    return all(map(_is_constant, parts))


def _kept(node: nodes.Node | None, at: nodes.Node | None = None) -> nodes.Filter:
    return _filtered(node, KEEP, at or cast("nodes.Node", node))


def _filtered(node: nodes.Node | None, name: str, at: nodes.Node) -> nodes.Filter:
    expression = cast("nodes.Expr", node)
    return nodes.Filter(expression, name, [], [], None, None, lineno=at.lineno)
