"""Chat templates: what they are given, what they want, and what they may not do."""

from typing import Any

import jinja2
import pytest

from router.rendering.anthropic import effort_for_none, wants_system_first
from router.rendering.messages import NotReproducible
from router.rendering.sandbox import TOO_DEEP
from router.rendering.template import ChatTemplate
from tests.rendering.folders import HI, reason, rendered, says
from tests.rendering.templates import CHATML, MISTRAL


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
        ("{% macro m(x, y='d') %}{{ x }}{{ y }}{% endmacro %}{{ m('a') }}{{ m(y=1, x=2) }}",
         "ad21"),
        ("{{ '%s-%s' % ('a', 1) }}{{ '=' * 3 }}{{ 2 ** 3 }}{{ 7 % 4 }}{{ [0] * 2 }}",
         "a-1===83[0, 0]"),
        ("{% for a in [[1, [2]], [3, []]] recursive %}{{ a[0] }}"
         "{% if a[1] %}{{ loop([[a[1][0], []]]) }}{% endif %}{% endfor %}", "123"),
        ("{% macro m() %}{{ caller(1) }}{% endmacro %}{% call(x) m() %}{{ x }}{% endcall %}", "1"),
    ],
)  # fmt: skip
def test_templates_are_rendered(template: str, text: str) -> None:
    """As Transformers renders them; that they are bounded does not show."""
    assert rendered(template) == text


def test_keywords_reach_the_template() -> None:
    """Those that it names, and that are not the engine's own; they win over special tokens."""
    template = ChatTemplate(
        "{{ bos_token }}{{ a }}{{ b }}{{ padding }}{{ continue_final_message }}{{ tools }}"
        "{{ documents }}{{ add_generation_prompt }}",
        {"bos_token": "<s>"},
    )
    more = {"a": 1, "c": 3, "padding": 4, "continue_final_message": 5, "add_generation_prompt": 6}
    assert template.render([HI], more=more) == "<s>1NoneNoneTrue"
    assert template.render([HI], more={"bos_token": "<b>"})[:3] == "<b>"


@pytest.mark.parametrize("name", ["messages", "tools", "documents", "tokenize", "self"])
def test_keywords_are_refused(name: str) -> None:
    """Those that lead elsewhere."""
    assert reason("{{ messages }}", more={name: 1}) == "odd template keywords"


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('no') }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(a=1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ (''|attr('__class__')).x }}",
        "{{ strftime_now.__code__.co_consts }}",
        "{{ lipsum.__globals__['os'].popen('id').read() }}",
        "{{ '{0.__class__}'.format('').x.y }}",
        "{% include 'x' %}",
        "{{ nothing.at.all }}",
        "{% for i in range(100001) %}{% endfor %}",
    ],
)
def test_templates_do_not_get_out(template: str) -> None:
    """Nor do they change what they are given."""
    messages = [dict(HI)]
    assert reason(template, *messages) in {"refused by the template", "a fault of the template"}
    assert messages == [HI]


@pytest.mark.parametrize("template", ["{{ ''['__class__'] }}", "{{ m.__class__ }}"])
def test_what_leads_out_is_nothing(template: str) -> None:
    """Where it is not asked for more."""
    assert rendered(template) == ""


@pytest.mark.parametrize(
    "template",
    [
        "{{ 1 + 'a' }}",
        "{{ 1 / 0 }}",
        "{{ nothing | tojson }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_faults_of_templates(template: str) -> None:
    """Whatever Python raises: the prompt is not known."""
    assert reason(template) in {"refused by the template", "a fault of the template"}


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
    """They are found out at once."""
    with pytest.raises((jinja2.TemplateError, *TOO_DEEP)):
        ChatTemplate(text, {})


def test_the_output_is_capped() -> None:
    """A prompt that is longer than it may be is not known."""
    template = "{% for a in range(999) %}{{ 'x' * 999 }}{% endfor %}"
    assert reason(template, max_chars=100_000) == "rendered too long"
    assert len(rendered(template, max_chars=1_000_000)) == 999 * 999


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
    """Up to where its text ends in what the template makes of it; or that cannot be known."""
    more = {"add_generation_prompt": False, "continue_final_message": True}
    last = says("assistant", content)
    if found is None:
        assert reason(template, HI, last, **more) == "nothing to continue"
    else:
        assert rendered(template, HI, last, **more) == found
    assert last == says("assistant", content)


def test_what_engines_refuse() -> None:
    """To render nothing, and to continue a message and begin one."""
    with pytest.raises(NotReproducible, match="no messages"):
        ChatTemplate("a", {}).render([])
    told = reason(CONTENT, HI, continue_final_message=True)
    assert told == "continues and begins a message"


SPOKEN = "{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}"
DEV, SYSTEM = says("developer", "d", tools=None), says("system", "s")


@pytest.mark.parametrize(
    ("template", "messages", "found"),
    [
        (SPOKEN, [DEV, HI], "system=d;user=Hi;"),
        (SPOKEN, [SYSTEM, HI, DEV], "system=s\n\nd;user=Hi;"),
        (SPOKEN, [HI, SYSTEM], "user=Hi;system=s;"),
        (SPOKEN, [says("system", ""), DEV, says("developer", "")], "system=d;"),
        (SPOKEN, [DEV, says("system", [{"text": "a"}, {"text": "b"}])], "system=d\n\na\nb;"),
        (SPOKEN + "{# 'developer' #}", [SYSTEM, DEV], "system=s;developer=d;"),
        (SPOKEN + "{# developer #}", [SYSTEM, DEV], "system=s\n\nd;"),
    ],
)
def test_developers(template: str, messages: list[dict[str, Any]], found: str) -> None:
    """They are the system, for templates that do not name them."""
    assert rendered(template, *messages) == found


@pytest.mark.parametrize(
    ("template", "first"),
    [
        (CHATML, False),
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
    """Templates are asked, in an environment where they find less than else."""
    assert wants_system_first(template) is first


@pytest.mark.parametrize(
    ("template", "effort"),
    [
        (SPOKEN, "low"),
        ("{{ reasoning_effort }}", "none"),
        ("{% if reasoning_effort == 'none' %}{{ raise_exception('no') }}{% endif %}", "low"),
        ("{{ 'high' if reasoning_effort in ['none', 'high'] else '' }}", "low"),
        ("{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
         "{{ enable_thinking }}", "none"),
    ],
)  # fmt: skip
def test_how_thinking_is_switched_off(template: str, effort: str) -> None:
    """By no effort, where that is another prompt than every effort."""
    assert effort_for_none(ChatTemplate(template, {}), {}) == effort


EACH = "{% for m in messages %}"
END = "{% endfor %}"


@pytest.mark.parametrize(
    ("template", "parts"),
    [
        ("", False),
        (EACH + "{{ m.content }}" + END, False),
        (EACH + "{% for p in m.content %}{{ p }}" + END * 2, True),
        (EACH + "{% for p in m['content'][1:] | list %}{{ p }}" + END * 2, True),
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
    """A list of parts, if they iterate over it; detected as engines do it."""
    macro = "{% macro t(x) %}{% endmacro %}" if "{{ t(" in template else ""
    assert ChatTemplate(macro + template, {}).wants_parts is parts
