"""Whether a chat template wants each message's content as one text, or as a list of parts.

Engines look for a loop over a message's content in the template's syntax tree, and hand over a list
of parts if there is one (vLLM renderers/hf.py, `_detect_content_format`). What is found here has to
be what is found there, down to where they give up: where a loop or an assignment that matters has
not a plain name as its target.
"""

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
            any(_reads(loop.iter, message, "content") for message in messages)
            or name in given.get(id(loop), ())
            or (name == "content" and id(loop) not in in_macros)
        ):
            yield bool(_name(loop.target))


def _message_names(tree: nodes.Template) -> Iterator[str]:
    """Names that stand for one message: targets of loops over the messages."""
    lists = _same_as(tree, "messages")
    for loop in _loops(tree):
        if any(_reads(loop.iter, name) for name in lists):
            yield _name(loop.target)


def _same_as(tree: nodes.Template, name: str) -> list[str]:
    """`name`, and the names that it, or a slice or a filtered form of it, is given to."""
    names = [name]
    for known in names:
        for assignment in tree.find_all(nodes.Assign):
            if _reads(assignment.node, known):
                target = _name(assignment.target)
                if target not in names:
                    names.append(target)
    return names


def _given_contents(tree: nodes.Template, messages: AbstractSet[str]) -> dict[int, set[str]]:
    """The loops inside of macros, by identity → the parameters that are given a content."""
    found: dict[int, set[str]] = {}
    calls = list(tree.find_all(nodes.Call))
    for macro in tree.find_all(nodes.Macro):
        names = [argument.name for argument in macro.args]
        given: set[str] = set()
        for call in calls:
            if isinstance(call.node, nodes.Name) and call.node.name == macro.name:
                pairs = [*zip(names, call.args, strict=False)]
                pairs += [(word.key, word.value) for word in call.kwargs if word.key in names]
                given |= {
                    name
                    for name, value in pairs
                    if any(_reads(value, message, "content") for message in messages)
                }
        if given:
            found |= dict.fromkeys((id(loop) for loop in _loops(macro)), given)
    return found


def _loops(root: nodes.Node) -> Iterator[nodes.For]:
    return root.find_all(nodes.For)


def _name(target: nodes.Node) -> str:
    if not isinstance(target, nodes.Name):
        raise _NoName
    return target.name


def _reads(node: nodes.Node | None, name: str, key: str | None = None) -> bool:
    """Whether `node` is the variable `name`, or its item `key`; filtered or sliced, maybe."""
    if isinstance(node, nodes.Filter | nodes.Test):
        return _reads(node.node, name, key)
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        return _reads(node.node, name, key)
    if key is None:
        return _is(node, name)
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == key and _is(node.node, name)
    return isinstance(node, nodes.Getattr) and node.attr == key and _is(node.node, name)


def _is(node: nodes.Node | None, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.ctx == "load" and node.name == name
