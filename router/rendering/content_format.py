"""Whether a chat template wants each message's content as one text or as a list of parts.

Engines search the template's syntax tree for a loop over a message's content and pass a list of
parts if there is one (vLLM renderers/hf.py, `_detect_content_format`). The result here must be the
same as theirs, including where they give up: if a loop or an assignment that matters has a target
that is not a plain name.
"""

from collections import defaultdict
from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from jinja2 import nodes


class _NoName(Exception):
    """The target of a loop or an assignment is not a plain name."""


def wants_parts(tree: nodes.Template) -> bool:
    """Whether the template loops over the parts of a message's content."""
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
    found: dict[int, set[str]] = {}
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
            found |= dict.fromkeys((id(loop) for loop in _loops(macro)), given)
    return found


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
