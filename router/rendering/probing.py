"""Properties of a chat template that engines detect by rendering it, for the Messages API.

vLLM entrypoints/anthropic/serving.py: `_detect_merge_inline_system`, and
`_probe_disabled_thinking_effort`.
"""

from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

from jinja2.ext import loopcontrols

from router.rendering.errors import Unlike
from router.rendering.sandbox import Bounded, run
from router.rendering.template import PATIENCE_S, ChatTemplate
from router.rendering.watch import Watch

_EFFORTS = ("low", "medium", "high", "xhigh", "max")
#: Longest output for four words, in characters.
_LONGEST = 1 << 20


def wants_system_first(text: str, clock: Callable[[], float] = monotonic) -> bool:
    """Whether a template refuses system messages after the first, so that they have to be merged.

    As in the engine, this is tested in an environment without most of what templates usually get,
    so a template that needs that counts as refusing. One that takes too long does too.
    """
    said = [{"role": role, "content": "t"} for role in ("system", "user") * 2]
    try:
        environment = Bounded(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        keywords = {"messages": said, "add_generation_prompt": False}
        run(environment.compiled(text), keywords, Watch(_LONGEST, PATIENCE_S, clock))
    except Exception:  # noqa: BLE001 - on errors not Jinja's an engine would not even start
        return True
    return False


def effort_for_none(template: ChatTemplate | None, keywords: Mapping[str, Any]) -> str:
    """Return the effort to use for "do not think": `low` if `none` changes nothing."""
    nothing = _said(template, keywords, "none")
    if nothing is None or any(_said(template, keywords, one) == nothing for one in _EFFORTS):
        return "low"
    return "none"


def _said(template: ChatTemplate | None, keywords: Mapping[str, Any], effort: str) -> str | None:
    if template is None:
        return None
    content = [{"type": "text", "text": "Hi"}] if template.wants_parts else "Hi"
    more = {**keywords, "reasoning_effort": effort, "enable_thinking": effort != "none"}
    try:
        return template.render([{"role": "user", "content": content}], more=more)
    except Unlike:
        return None
