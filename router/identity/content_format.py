"""Whether a chat template wants each message's content as one text, or as a list of parts.

Engines look for a loop over a message's content in the template's syntax tree, and hand over a list
of parts if there is one (vLLM renderers/hf.py, `_detect_content_format`). What is found here has to
be what is found there, down to where they give up: where a loop or an assignment that matters has
not a plain name as its target.
"""

from collections import defaultdict
from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from jinja2 import nodes


class _NoName(Exception):
    """The target of a loop or an assignment is not a plain name."""


def wants_parts(tree: nodes.Template) -> bool:
    """Whether the template goes through the parts of a message's content."""
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
    """Names that stand for one message: targets of loops over the messages."""
    lists = _same_as(tree, "messages")
    for loop in _loops(tree):
        if _read(loop.iter) in lists:
            yield _name(loop.target)


def _same_as(tree: nodes.Template, name: str) -> AbstractSet[str]:
    """`name`, and the names that it, or a slice or a filtered form of it, is given to."""
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
    """The loops inside of macros, by identity → the parameters that are given a content."""
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
    """Return the variable that `node` is, or of which it is the item `key`; filtered or sliced,
    maybe."""
    while isinstance(node, nodes.Filter | nodes.Test) or (
        isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
    ):
        node = node.node
    if key is not None:
        node = _with_item(node, key)
    return node.name if isinstance(node, nodes.Name) and node.ctx == "load" else None


def _with_item(node: nodes.Node | None, key: str) -> nodes.Node | None:
    """Return that of which `node` is the item `key`."""
    if isinstance(node, nodes.Getitem):
        return node.node if isinstance(node.arg, nodes.Const) and node.arg.value == key else None
    return node.node if isinstance(node, nodes.Getattr) and node.attr == key else None
