"""Whether templates want texts or parts, detected as engines do it."""

import pytest
from jinja2 import Environment

from router.rendering.template import wants_parts

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
        (EACH + "{% set content = m.content %}{% for p in content %}" + END * 2, True),
        (EACH + "{% set said = m.content %}{% for p in said %}" + END * 2, False),
        ("{% for p in content %}" + END, True),
        ("{% for p in messages[0].content %}" + END, False),
        ("{% set s = messages[1:] %}{% for m in s %}{% for p in m.content %}" + END * 2, True),
        ("{% set a = messages %}{% set b = a | list %}{% for m in b[::-1] %}"
         "{% for p in m.content %}" + END * 2, True),
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
