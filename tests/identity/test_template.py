"""Chat templates: what they are given, and what they may not do."""

import tracemalloc
from collections.abc import Callable
from typing import Any

import jinja2
import pytest

from router.identity.probing import effort_for_none, wants_system_first
from router.identity.template import PATIENCE_S, TOO_DEEP, ChatTemplate
from router.identity.unlike import Unlike
from router.identity.watch import WATCH, Watch
from tests.identity.folders import rendered, says
from tests.identity.templates import CHATML, MISTRAL, QWEN

HI = says("user", "Hi")


def reason(template: str, *messages: dict[str, Any], **more: Any) -> str:
    """Return why a template cannot be rendered."""
    with pytest.raises(Unlike) as told:
        rendered(template, *messages, **more)
    return told.value.reason


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{% for m in messages %}\n  {% if 1 %}\n{{ m.role }}\n  {% endif %}\n{% endfor %}\n",
         "user\n"),
        ("a\n{# no #}\nb\n", "a\nb"),
        ("{{ {'ä': '<>&\\''} | tojson }}", '{"ä": "<>&\'"}'),
        ("{{ [1, 2] | tojson(indent=1) }}", "[\n 1,\n 2\n]"),
        ("{{ {'b': 'ä', 'a': 1} | tojson(true, none, (',', ':'), true) }}",
         '{"a":1,"b":"\\u00e4"}'),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}!", "Hi!"),
        ("{% for x in 'abc' %}{% if x == 'b' %}{% continue %}{% endif %}{{ x }}{% endfor %}", "ac"),
        ("{% for x in 'abc' %}{% if x == 'b' %}{% break %}{% endif %}{{ x }}{% endfor %}", "a"),
        ("{{ messages[0]['nothing'] }}{{ nothing }}{{ nothing is defined }}", "False"),
        ("{% set ns = namespace(n=0) %}{% for x in 'abc' %}{% set ns.n = loop.index %}{% endfor %}"
         "{{ ns.n }}", "3"),
        ("{% macro m(x, y='d') %}{{ x }}{{ y }}{% endmacro %}{{ m('a') }}{{ m(y=1, x=2) }}",
         "ad21"),
        ("{% set x %}a{{ 1 }}{% endset %}{{ x }}{{ x | length }}", "a12"),
        ("{% set a, b = (1, 2) %}{{ b }}{{ a }}", "21"),
        ("{{ '%s-%s' % ('a', 1) }}{{ '=' * 3 }}{{ 2 ** 3 }}{{ 7 % 4 }}{{ [0] * 2 }}",
         "a-1===83[0, 0]"),
        ("{% for a in [[1, [2]], [3, []]] recursive %}{{ a[0] }}"
         "{% if a[1] %}{{ loop([[a[1][0], []]]) }}{% endif %}{% endfor %}", "123"),
        ("{% for x in [] %}a{% else %}b{% endfor %}", "b"),
        ("{% macro m() %}{{ caller(1) }}{% endmacro %}{% call(x) m() %}{{ x }}{% endcall %}", "1"),
        ("{% filter upper %}a{% for x in 'b' %}{{ x }}{% endfor %}{% endfilter %}", "AB"),
    ],
)  # fmt: skip
def test_templates_are_rendered(template: str, text: str) -> None:
    """As Transformers renders them; the limits do not show."""
    assert rendered(template) == text


def test_keywords_reach_the_template() -> None:
    """Those that it uses and that are not the engine's own; they override special tokens."""
    template = ChatTemplate(
        "{{ bos_token }}{{ a }}{{ b }}{{ padding }}{{ continue_final_message }}{{ tools }}"
        "{{ documents }}{{ add_generation_prompt }}",
        {"bos_token": "<s>"},
    )
    more = {"a": 1, "c": 3, "padding": 4, "continue_final_message": 5, "add_generation_prompt": 6}
    assert template.render([HI], more=more) == "<s>1NoneNoneTrue"
    assert template.render([HI], more={"bos_token": "<b>"})[:3] == "<b>"


@pytest.mark.parametrize("name", ["messages", "tools", "documents", "tokenize", "self", WATCH])
def test_keywords_are_refused(name: str) -> None:
    """Keywords that would replace what the renderer itself passes."""
    assert reason("{{ messages }}", more={name: 1}) == "odd template keywords"


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('no') }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(a=1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ (''|attr('__class__')).x }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ strftime_now.__code__.co_consts }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ _watch._clock.x }}",
        "{{ lipsum.__globals__['os'].popen('id').read() }}",
        "{{ '{0.__class__}'.format('').x.y }}",
        "{% include 'x' %}",
        "{% import 'x' as x %}",
        "{{ nothing.at.all }}",
        "{% for i in range(100001) %}{% endfor %}",
        "{{ 10 ** (10 ** 10) }}",
        "{{ '%9999999999d' % 1 }}",
        "{{ '%*d' % (9999999999, 1) }}",
    ],
)
def test_templates_do_not_get_out(template: str) -> None:
    """Nor can they change what they are given, or make something huge."""
    messages = [dict(HI)]
    assert reason(template, *messages) in {"refused by the template", "a fault of the template"}
    assert messages == [HI]


@pytest.mark.parametrize(
    "template", ["{{ ''['__class__'] }}", "{{ raise_exception.__globals__ }}", "{{ m.__class__ }}"]
)
def test_what_leads_out_is_nothing(template: str) -> None:
    """Unsafe attributes are undefined if nothing more is asked of them."""
    assert rendered(template) == ""


@pytest.mark.parametrize(
    "template",
    [
        "{{ 1 + 'a' }}",
        "{{ nothing + 1 }}",
        "{{ 1 / 0 }}",
        "{{ nothing | tojson }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_faults_of_templates(template: str) -> None:
    """Whatever Python raises, the prompt is not known."""
    assert reason(template) in {"refused by the template", "a fault of the template"}


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
    """Whether it is written or only kept in a variable."""
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
    """It is stopped before it exists, wherever it is made: memory would not suffice."""
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
    """An iterator is measured before it is joined, so that memory use stays small."""
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
    """Widths, very large numbers, and random choices are refused in any case."""
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
    """Such operations work within limits."""
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
    # Single steps that each take long.
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
    """A short list and a large number do not become a long list that is only then measured."""
    watch = Watch(100, PATIENCE_S, ticking(0.0))
    watch.widened([1], [100, "x"])
    with pytest.raises(Unlike, match="rendered too long"):
        watch.widened([1], [101, "x"])


def ticking(seconds: float) -> Callable[[], float]:
    """Return a clock that advances by so much each time it is read."""
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += seconds
        return now

    return clock


@pytest.mark.parametrize("template", SLOW)
def test_what_takes_too_long(template: str) -> None:
    """It is stopped, even if nothing is written."""
    assert reason(template, clock=ticking(PATIENCE_S / 50)) == "rendered too slowly"


def test_a_slow_clock_does_no_harm() -> None:
    """A short rendering may take all its time."""
    template = "{% for a in range(999) %}a{% endfor %}"
    assert rendered(template, clock=ticking(PATIENCE_S / 200)) == "a" * 999


@pytest.mark.parametrize(
    "text",
    [
        *("{% for %}", "{{ a", "{% endif %}", "{% nothing %}", "{{ a|nothing }}"),
        "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
        "{% for a in b %}" * 30 + "{% endfor %}" * 30,
        "{{ " + "9" * 5000 + " }}",
        "{{ a + b }}" * 30_000,
    ],
)
def test_templates_that_are_none(text: str) -> None:
    """Invalid templates are rejected at once."""
    with pytest.raises((jinja2.TemplateError, *TOO_DEEP)):
        ChatTemplate(text, {})


def test_messages_there_must_be() -> None:
    """Engines refuse to render an empty list."""
    with pytest.raises(Unlike, match="no messages"):
        ChatTemplate("a", {}).render([])


CONTENT = "{% for m in messages %}[{{ m.content }}]{% endfor %}"


@pytest.mark.parametrize(
    ("template", "content", "found"),
    [
        (CONTENT, "a b ", "[Hi][a b "),
        (CONTENT, "", "[Hi]["),
        (CONTENT.replace("content }", "content | trim }"), "a b ", "[Hi][a b"),
        (CONTENT.replace("content }", "content | trim }"), " \n", "[Hi]["),
        (CONTENT, "a CONTINUE_FINAL_MESSAGE_TAG b", "[Hi][a CONTINUE_FINAL_MESSAGE_TAG b"),
        (CONTENT, [{"type": "text", "text": "a"}], "[Hi][[{'type': 'text', 'text': 'a"),
        (CONTENT, [], None),
        (CONTENT, [{"type": "image"}], None),
        ("{% for m in messages %}{{ m.role }}{% endfor %}", "a", None),
        ("{{ messages[0].content }}", "a", None),
        ("{% for m in messages %}{{ m.content | upper }}{% endfor %}", "a", None),
    ],
)
def test_a_message_is_continued(template: str, content: object, found: str | None) -> None:
    """Up to the end of its text in the rendering, if that can be determined."""
    more = {"add_generation_prompt": False, "continue_final_message": True}
    last = says("assistant", content)
    if found is None:
        assert reason(template, HI, last, **more) == "nothing to continue"
    else:
        assert rendered(template, HI, last, **more) == found
    assert last == says("assistant", content)


def test_one_does_not_continue_and_begin() -> None:
    """Engines refuse to do both."""
    told = reason(CONTENT, HI, continue_final_message=True)
    assert told == "continues and begins a message"


SPOKEN = "{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}"
DEV, SYSTEM = says("developer", "d", tools=None), says("system", "s")


@pytest.mark.parametrize(
    ("template", "messages", "found"),
    [
        (SPOKEN, [DEV, HI], "system=d;user=Hi;"),
        (SPOKEN, [SYSTEM, HI, DEV], "system=s\n\nd;user=Hi;"),
        (SPOKEN, [HI, DEV], "system=d;user=Hi;"),
        (SPOKEN, [HI, SYSTEM], "user=Hi;system=s;"),
        (SPOKEN, [says("system", ""), DEV, says("developer", "")], "system=d;"),
        (SPOKEN, [DEV, says("system", [{"text": "a"}, {"text": "b"}])], "system=d\n\na\nb;"),
        (SPOKEN + "{# 'developer' #}", [SYSTEM, DEV], "system=s;developer=d;"),
        (SPOKEN + '{# "developer" #}', [SYSTEM, DEV], "system=s;developer=d;"),
        (SPOKEN + "{# developer #}", [SYSTEM, DEV], "system=s\n\nd;"),
    ],
)
def test_developers(template: str, messages: list[dict[str, Any]], found: str) -> None:
    """They become the system message, unless the template names the role."""
    assert rendered(template, *messages) == found


@pytest.mark.parametrize(
    ("template", "first"),
    [
        (CHATML, False),
        (QWEN, False),
        (MISTRAL, True),
        (SPOKEN, False),
        ("{{ nothing.at.all }}", True),
        ("{{ strftime_now('%d') }}", True),
        ("{% generation %}{% endgeneration %}", True),
        ("{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
         "{{ raise_exception('no') }}{% endif %}{% endfor %}", True),
    ],
)  # fmt: skip
def test_whether_the_system_speaks_first(template: str, first: bool) -> None:
    """Templates are probed in an environment with fewer functions than usual."""
    assert wants_system_first(template) is first


@pytest.mark.parametrize("template", [*SLOW, "{{ 'x' | center(600000000) }}"])
def test_templates_are_not_asked_for_ever(template: str) -> None:
    """A template that takes too long or too much counts as one that refuses."""
    assert wants_system_first(template, ticking(PATIENCE_S / 50))


@pytest.mark.parametrize(
    ("template", "effort"),
    [
        (SPOKEN, "low"),
        ("{{ reasoning_effort }}", "none"),
        ("{{ enable_thinking }}", "none"),
        ("{% if reasoning_effort == 'none' %}{{ raise_exception('no') }}{% endif %}", "low"),
        ("{{ 'high' if reasoning_effort in ['none', 'high'] else '' }}", "low"),
        ("{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
         "{{ enable_thinking }}", "none"),
    ],
)  # fmt: skip
def test_how_thinking_is_switched_off(template: str, effort: str) -> None:
    """By effort `none`, if that gives another prompt than every other effort."""
    assert effort_for_none(ChatTemplate(template, {}), {}) == effort
