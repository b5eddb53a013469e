"""Whether templates want texts or parts, detected as engines do it."""

import itertools
from collections.abc import Iterator
from unittest.mock import patch

import pytest
from jinja2 import Environment, nodes

from router.rendering.template import ChatTemplate, wants_parts
from tests.identity.families import FAMILIES

EACH = "{% for m in messages %}"
END = "{% endfor %}"


@pytest.mark.parametrize(
    ("template", "parts"),
    [
        ("", False),
        (EACH + "{{ m.content }}" + END, False),
        (EACH + "{% for p in m.content %}{{ p }}" + END * 2, True),
        (EACH + "{% for p in m['content'] %}{{ p }}" + END * 2, True),
        (EACH + "{% for p in m['content'][1:] | list %}{{ p }}" + END * 2, True),
        (EACH + "{% for p in m.content | selectattr('type') %}" + END * 2, True),
        (EACH + "{% for p in m.content.parts %}" + END * 2, False),
        (EACH + "{% for p in m.contents %}" + END * 2, False),
        (EACH + "{% for p in n.content %}" + END * 2, False),
        (EACH + "{% for p in m[key] %}" + END * 2, False),
        (EACH + "{% set content = m.content %}{% for p in content %}" + END * 2, True),
        (EACH + "{% set said = m.content %}{% for p in said %}" + END * 2, False),
        ("{% for p in content %}" + END, True),
        ("{% for p in messages[0].content %}" + END, False),
        ("{% set s = messages[1:] %}{% for m in s %}{% for p in m.content %}" + END * 2, True),
        ("{% set a = messages %}{% set b = a | list %}{% for m in b[::-1] %}"
         "{% for p in m.content %}" + END * 2, True),
        ("{% set a = messages %}{% set a = a %}{% for m in a %}" + END, False),
        # Macros that are passed a content iterate over it by the name of their parameter.
        ("{% macro s(c) %}{% for p in c %}" + END + "{% endmacro %}" + EACH + "{{ s(m.content) }}"
         + END, True),
        ("{% macro s(a, c) %}{% for p in c %}" + END + "{% endmacro %}" + EACH
         + "{{ s(1, c=m.content) }}" + END, True),
        ("{% macro s(a, c) %}{% for p in a %}" + END + "{% endmacro %}" + EACH
         + "{{ s(1, c=m.content) }}" + END, False),
        ("{% macro s(content) %}{% for p in content %}" + END + "{% endmacro %}" + EACH
         + "{{ s(m.role) }}" + END, False),
        ("{% macro s(c) %}{% for p in c %}" + END + "{% endmacro %}" + EACH + "{{ t(m.content) }}"
         + END, False),
        # If a target is not a plain name, engines give up and use texts.
        (EACH + "{% for k, v in m.content %}" + END * 2, False),
        ("{% for i, m in messages %}{% for p in m.content %}" + END * 2, False),
        ("{% set ns.a = messages %}" + EACH + "{% for p in m.content %}" + END * 2, False),
        (EACH + "{% for p in m.content %}" + END + "{% for k, v in m.content %}" + END * 2, True),
    ],
)  # fmt: skip
def test_what_templates_want(template: str, parts: bool) -> None:
    """A list of parts, if they iterate over it."""
    assert wants_parts(Environment(autoescape=True).parse(template)) is parts


def looked_at(aliases: int) -> int:
    """Return how many nodes are visited in a template with this many aliases of `messages`."""
    seen = 0
    each = nodes.Node.iter_child_nodes

    def counted(node: nodes.Node) -> Iterator[nodes.Node]:
        nonlocal seen
        seen += 1
        return each(node)

    names = ["messages", *(f"a{at}" for at in range(aliases))]
    given = [f"{{% set {new} = {old} %}}" for old, new in itertools.pairwise(names)]
    last = "{% for m in " + names[-1] + " %}{% for p in m.content %}" + END * 2
    tree = Environment(autoescape=True).parse("".join(given) + last)
    with patch.object(nodes.Node, "iter_child_nodes", counted):
        assert wants_parts(tree)
    return seen


def test_many_names() -> None:
    """Each alias is followed without walking the whole template again."""
    few, many = looked_at(50), looked_at(400)
    assert many < 10 * few


@pytest.mark.parametrize("name", FAMILIES)
def test_families(name: str) -> None:
    """Only a few families iterate over parts."""
    template = ChatTemplate(FAMILIES[name].template, {})
    assert template.wants_parts is (name in {"gemma", "witness-parts"})
