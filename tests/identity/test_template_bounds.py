"""Chat templates: bounds on what they make, and on how long they take."""

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from router.rendering.anthropic import wants_system_first
from router.rendering.errors import NotReproducible
from router.rendering.template import PATIENCE_S
from router.rendering.watch import Watch
from tests.identity.folders import HI, reason, rendered


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(999) %}{{ 'x' * 999 }}{% endfor %}",
        "{% set s = 'x' * 99999 %}{% set s = s ~ s %}{{ s }}",
        "{% set ns = namespace(s='x' * 9) %}"
        "{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set l = [1] * 99999 %}{% set l = l + l %}",
        "{% set x %}{% for a in range(999) %}{{ 'x' * 999 }}{% endfor %}{% endset %}{{ x }}",
        "{{ '=' * (2 ** 40) }}",
        "{{ (2 ** 40) * 'a' }}",
        "{{ [0] * (2 ** 40) }}",
    ],
)
def test_what_grows_too_long(template: str) -> None:
    """Whether it is said or kept."""
    assert reason(template, limit=100_000) == "rendered too long"


GIGA = "600000000"
X = "{% set x = 'x' * 90000 %}"
LISTS = "{% set ns = namespace(a=[0], b=[0]) %}{% for i in range(40) %}"


@pytest.mark.parametrize(
    "template",
    [
        "{% set x = 'x' %}" + "{% set x %}{{ x }}{{ x }}{% endset %}" * 26,
        "{% set x = 'x' %}" + "{% set x = x + x %}" * 26,
        "{% set x = 'x' %}" + "{% set x = x ~ x %}" * 26,
        X + "{{ '' if (" + " + ".join("x" * 150) + ") else '' }}",
        X + "{{ '' if (" + " ~ ".join("x" * 150) + ") else '' }}",
        X + "{% macro m() %}" + "{{ x }}" * 99 + "{% endmacro %}{% if m() %}{% endif %}",
        X
        + "{% macro m() %}{{ caller() }}{% endmacro %}{% set y %}{% call m() %}"
        + "{{ x }}" * 99
        + "{% endcall %}{% endset %}",
        X + "{% set y %}{% filter upper %}" + "{{ x }}" * 99 + "{% endfilter %}{% endset %}",
        X + "{% macro m(x, n) %}{% if n %}{% if m(x + x, n - 1) %}{% endif %}{% endif %}"
        "{% endmacro %}{{ m(x, 99) }}",
        X + "{% set ns = namespace(l=[]) %}{% for i in range(9999) %}"
        "{% set ns.l = ns.l + [x ~ i] %}{% endfor %}",
        X + "{% set y %}{% for i in range(9999) %}{{ x + '' }}{% endfor %}{% endset %}",
        X + "{% set l = [x, x, x] %}",
        X + "{{ ([x] * 999) | length }}",
        "{{ 'x' | center(" + GIGA + ") | length }}",
        "{{ ('x' | center(" + GIGA + ") + '') | length }}",
        "{{ 'x'.center(" + GIGA + ") | length }}",
        "{{ 'x'.ljust(" + GIGA + ") | length }}",
        "{{ 'x'.rjust(width) | length }}",
        "{{ ('x' | safe).zfill(" + GIGA + ") | length }}",
        "{{ '\t'.expandtabs(" + GIGA + ") | length }}",
        "{{ (1).to_bytes(" + GIGA + ", 'big') | length }}",
        "{% filter center(" + GIGA + ") %}x{% endfilter %}",
        "{{ ['x'] | map('center', " + GIGA + ") | list | length }}",
        X + "{{ x | replace('x', x) | length }}",
        X + "{{ x.replace('x', x) | length }}",
        X + "{{ x | list | join(x) | length }}",
        X + "{{ x.join(x) | length }}",
        X + "{{ x.translate({120: x}) | length }}",
        X + "{{ ('x\n' * 99) | indent(x) | length }}",
        X + "{{ ('%s' * 999) | format(*([x] * 999)) | length }}",
        X + "{{ ('%(a)s' * 999) % {'a': x} }}",
        X + "{{ ('{0}' * 999).format(x) | length }}",
        X + "{{ ('{a}' * 999).format_map({'a': x}) | length }}",
        "{{ [1] | batch(" + GIGA + ", 0) | list | length }}",
        "{{ [] | slice(" + GIGA + ") | list | length }}",
        X + "{{ x.rfind('a' ~ x) }}",
        X + "{{ (x | safe).rindex('a' ~ x) }}",
        X + "{{ x.rsplit('a' ~ x) }}",
        X + "{{ x.rpartition('a' ~ x) }}",
        X + "{{ x.strip('a' ~ x) }}",
        X + "{{ x.lstrip('a' ~ x) }}",
        X + "{{ x.rstrip(('a' * 9999) ~ 'b') }}",
        X + "{{ x | trim('a' ~ x) }}",
        LISTS + "{% set ns.a = [ns.a, ns.a] %}{% endfor %}",
        LISTS + "{% set ns.a = (ns.a, ns.a) %}{% endfor %}",
        LISTS + "{% set ns.a = {0: ns.a, 1: ns.a} %}{% endfor %}",
        LISTS + "{% set ns.a = dict(a=ns.a, b=ns.a) %}{% endfor %}",
        LISTS + "{% set ns.a = [{0: ns.a}.items(), ns.a] %}{% endfor %}",
        LISTS + "{% set ns.a = (ns.a + ns.a) | batch(2) | list %}{% endfor %}",
        LISTS + "{% set ns.a = dict.fromkeys([1, 2], ns.a) %}{% endfor %}",
        "{% set d = messages[0].deep %}{{ d | tojson(indent=60) }}",
    ],
)
def test_what_little_makes_huge(template: str) -> None:
    """It is stopped before it is there, wherever it is made: nobody has the memory for it."""
    deep: list[Any] = [0] * 30
    for _ in range(60):
        deep = [deep]
    given = {**HI, "deep": deep}
    told = reason(template, given, limit=100_000, more={"width": 1 << 30})
    assert told in {"rendered too long", "rendered too slowly"}, "the latter on a busy machine"


@pytest.mark.parametrize(
    "template",
    [
        "{{ ([0] * 999) | map('default', x, true) | join | length }}",
        "{{ ''.join(([0] * 999) | map('default', x, true)) | length }}",
        "{{ ([0] * 999) | map('default', [x], true) | join | length }}",
        "{{ ([0] * 999) | map('default', {'a': x}, true) | map(attribute='a') | join }}",
        "{{ range(999) | join(x) | length }}",
        "{{ ([''] * 999) | reverse | join(x) | length }}",
        "{{ x.join(([''] * 999) | reverse) | length }}",
        "{{ x.join(([''] * 999) | select('string')) | length }}",
        "{% for a in [''] * 999 %}{{ loop | join(x) | length }}{% endfor %}",
    ],
)
def test_what_is_given_bit_by_bit(template: str) -> None:
    """It is stopped before somebody puts it together: what was made is only as long as that."""
    tracemalloc.start()
    try:
        assert reason(X + template, limit=100_000) == "rendered too long"
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "template",
    [
        "{{ '{:600000000}'.format(1) | length }}",
        "{{ '{:{}}'.format(1, 600000000) | length }}",
        "{{ ('{:600000000}' | safe).format(1) | length }}",
        "{{ '{a:600000000}'.format_map({'a': 1}) | length }}",
        "{{ '%600000000d' | format(1) | length }}",
        "{{ '%(a)600000000d' % {'a': 1} }}",
        "{{ '%(a)*d' % {'a': 1} }}",
        "{{ [1] | tojson(indent=600000000) }}",
        "{{ ('f' * 99999) | int(base=16) }}",
        "{{ 9 ** 9999 }}",
        "{% set n = namespace(x=9) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}",
        "{{ [namespace()] }}",
        "{{ namespace(a=namespace()) }}",
        "{{ lipsum(n=600000000) }}",
        "{{ 5 | round(-10000000) }}",
        "{{ 1.5 | round(10000000, 'ceil') }}",
        "{{ [1.5] | map('round', 10000000) | list }}",
        "{{ 'a'.encode('punycode') }}",
        "{{ 'a'.encode(encoding='idna') }}",
        "{{ ('a' | safe).encode('ascii', 'namereplace') }}",
        "{{ 'a'.encode().decode('punycode') }}",
        "{{ messages | pprint }}",
        "{{ messages | random }}",
    ],
)
def test_what_no_prompt_needs(template: str) -> None:
    """Widths, numbers of many digits, and what is said at random: refused, whatever comes of it."""
    assert reason(template) == "refused by the template"


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ '%s %d%%' % ('a', 1) }}{{ '%s' | format(1) }}{{ '%(a)s' % {'a': 1} }}", "a 1%11"),
        ("{{ '{} {a:02d} {a!r}'.format('x', a=1) }}", "x 01 1"),
        ("{{ 'a'.center(3) }}{{ 'a' | center(3) }}{{ '1'.zfill(3) }}", " a  a 001"),
        ("{{ 'a\nb' | indent(2) }}{{ ['a', 'b'] | join(', ') }}{{ 'aa'.replace('a', 'b') }}",
         "a\n  ba, bbb"),
        ("{{ [1, 2, 3] | batch(2) | list }}{{ 'a b'.split() }}{{ (1, 2)[1:] }}",
         "[[1, 2], [3]]['a', 'b'](2,)"),
        ("{% set l = [1] %}{% set l = l + [2] %}{{ l }}{{ {'a': l} }}{{ l | sum }}",
         "[1, 2]{'a': [1, 2]}3"),
        ("{{ [' a '] | map('trim') | list }}{{ ' a ' | trim }}{{ 'xax' | trim('x') }}",
         "['a']aa"),
        ("{% for i in range(9) if i % 4 == 0 %}{{ i }}{{ loop.length }}{% endfor %}", "034383"),
        ("{% set x | upper %}a{{ 1 }}{% endset %}{{ x }}{% block b %}{{ x + 'b' }}{% endblock %}"
         "{{ self.b() }}", "A1A1bA1b"),
        ("{{ " + " ~ ".join("1" * 40) + " }}{{ " + " + ".join("1" * 40) + " }}", "1" * 40 + "40"),
        ("{% for m in messages %}{{ m.get('x', 'y') }}{{ m.items() | list | length }}"
         "{{ m.role.startswith('u') }}{% endfor %}", "y2True"),
        ("{{ [3, 1] | sort }}{{ {'a': 1} | dictsort }}{{ 7 // 2 }}{{ -7 // 2 }}{{ 2 ** -1 }}",
         "[1, 3][('a', 1)]3-40.5"),
        ("{{ (1, 2) | tojson(indent='  ') }}", "[\n  1,\n  2\n]"),
        ("{{ nothing | default('d') | first }}{{ [1, 2] | last }}{{ 'a' is string }}", "d2True"),
        ("{{ [[1], [2]] | sum(start=[]) }}", "[1, 2]"),
        ("{{ [{'a': 1}, {'a': 2}] | sum('a') }}", "3"),
        ("{{ [1, 2] | sum(start=3) }}", "6"),
        ("{{ 1 in [1] }}{{ 'a' not in {'a': 1} }}{{ 1 < 2 < messages | length + 2 }}"
         "{{ 2 is in(messages) }}{{ messages[0].role == messages[0]['role'] }}"
         "{{ nothing == 1 }}{{ 1 in nothing }}",
         "TrueFalseTrueFalseTrueFalseFalse"),
        ("{{ [1, 2, 3] | select('gt', 1) | list }}{{ 2 is eq(2.0) }}{{ 'a' is in('ab') }}",
         "[2, 3]TrueTrue"),
        ("{{ range(3) | join('-') }}{{ ['a', 'b'] | reverse | join }}{{ {'a': 1} | join }}",
         "0-1-2baa"),
        ("{{ '-'.join(['a', 'b'] | map('upper')) }}{{ '-'.join({'a': 1}.keys()) }}", "A-Ba"),
        ("{{ 1.25 | round(1) }}{{ 1.21 | round(1, 'ceil') }}{{ 15 | round(-1) }}", "1.21.320"),
        ("{{ 'ä'.encode('utf-8') | length }}{{ 'ä'.encode().decode() }}", "2ä"),
        ("{{ '-a-b-'.strip('-').rsplit('-', 1) }}{{ ' a'.lstrip() }}{{ 'aba'.rfind('a') }}",
         "['a', 'b']a2"),
    ],
)  # fmt: skip
def test_what_prompts_need(template: str, text: str) -> None:
    """Is there, with measure."""
    assert rendered(template) == text


LOOP = "{% for a in range(99999) %}"
NESTED = "{% set x = [[0] * 90000] %}{% set y = [[0] * 90000] %}"
SLOW = [
    LOOP * 9 + "{% endfor %}" * 9,
    "{% set x %}" + LOOP * 9 + "{% endfor %}" * 9 + "{% endset %}",
    "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(40) }}",
    "{% for a in messages %}" + "{% for a in messages * 999 %}" * 9 + "{% endfor %}" * 10,
    LOOP * 9 + "a" + "{% endfor %}" * 9,
    "{% for i in range(9999) if (range(99) | sum) < 0 %}{% endfor %}",
    "{% set a = range(99999) " + "| map('trim') " * 99 + "| list %}",
    "{% set a = range(99999) " + "| batch(1) " * 9 + "| list %}",
    "{% macro m(n) %}{% if n %}{% if m(n - 1) or m(n - 1) %}{% endif %}{% endif %}{% endmacro %}"
    "{{ m(40) }}",
    # Single steps of which each takes long.
    "{% set l = namespace(x=[1]) %}{% for i in range(40) %}{% set l.x = [l.x, l.x] %}{% endfor %}",
    "{% set l = namespace(x=[1]) %}{% for i in range(40) %}{% set l.x = {1: l.x, 2: l.x} %}"
    "{% endfor %}",
    "{% set x = [1] * 50000 %}{% for i in range(99) %}{% set y = x | max %}{% endfor %}",
    "{% set x = 'ab ' * 50000 %}{% for i in range(99) %}{% set y = x.title() %}{% endfor %}",
    "{% set x = ([[1] * 99] * 9999) | sum(start=[]) %}",
    X * 2 + "{% if 'ab' in x %}{% endif %}" * 999,
    X * 2 + "{% if 'ab' not in x %}{% endif %}" * 999,
    X * 2 + "{% if 'ab' is in x %}{% endif %}" * 999,
    X + "{% set y = 'x' ~ x %}" + "{% if x < y %}{% endif %}" * 999,
    NESTED + "{{ x == y }}" * 999,
    NESTED + "{{ x is eq(y) }}" * 999,
    "{% set x = [0] * 90000 %}" + "{{ 1 in x }}" * 999,
]


def test_what_is_filled_up_is_refused_before() -> None:
    """A list of many is not made of a short one and a number, to find that it is too long."""
    watch = Watch(100, PATIENCE_S, ticking(0.0))
    watch.widened([1], [100, "x"])
    with pytest.raises(NotReproducible, match="rendered too long"):
        watch.widened([1], [101, "x"])


def ticking(seconds: float) -> Callable[[], float]:
    """A clock that goes on by so much whenever somebody looks."""
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += seconds
        return now

    return clock


@pytest.mark.parametrize("template", SLOW)
def test_what_takes_too_long(template: str) -> None:
    """Also where nothing is said."""
    assert reason(template, clock=ticking(PATIENCE_S / 50)) == "rendered too slowly"


def test_a_slow_clock_does_no_harm() -> None:
    """A rendering that is not long may take all its time."""
    template = "{% for a in range(999) %}a{% endfor %}"
    assert rendered(template, clock=ticking(PATIENCE_S / 200)) == "a" * 999


@pytest.mark.parametrize("template", [*SLOW, "{{ 'x' | center(600000000) }}"])
def test_templates_are_not_asked_for_ever(template: str) -> None:
    """One that takes long, or much, counts as one that refuses."""
    assert wants_system_first(template, ticking(PATIENCE_S / 50))
