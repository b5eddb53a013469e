"""A model's chat template: conversation in, text out, as Transformers renders it.

Templates are programs. They come from the model folders that the operator named, never from a
request. They run in Jinja's immutable sandbox: no attributes that lead outside, no changes to their
input, a bounded `range`. `bounds` limits their cost. None of this changes their output.
"""

from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any

import jinja2
from jinja2 import meta

from router.rendering.content_format import wants_parts
from router.rendering.continuing import cut, to_continue
from router.rendering.developers import without_developers
from router.rendering.environment import make_environment
from router.rendering.errors import Unlike
from router.rendering.sandbox import run
from router.rendering.watch import WATCH, Watch

#: What Python raises if a template is nested too deeply to compile.
TOO_DEEP = (RecursionError, MemoryError, OverflowError, SyntaxError)
#: Seconds that one rendering may take.
PATIENCE_S = 2.0
#: Keywords that do not just reach the template: engines refuse them, or use them for something that
#: only they can know.
_REFUSED = frozenset(
    (
        "chat_template",
        "conversation",
        "conversations",
        "documents",
        "messages",
        "model_config",
        "return_assistant_tokens_mask",
        "self",
        "tokenize",
        "tokenizer",
        "tools",
        WATCH,
    )
)
#: Keywords that engines use themselves: templates never see them.
_SWALLOWED = frozenset(
    (
        "add_generation_prompt",
        "continue_final_message",
        "max_length",
        "padding",
        "return_dict",
        "return_tensors",
        "tokenizer_kwargs",
        "truncation",
    )
)


class ChatTemplate:
    """One compiled template. Raises jinja2.TemplateError or `TOO_DEEP` if it cannot be compiled."""

    def __init__(self, text: str, special_tokens: Mapping[str, str]) -> None:
        self.text = text
        environment = make_environment()
        self._template = environment.compiled(text)
        # The template is analysed as written, not as changed by `bounds`.
        tree = environment.parse(text)
        self.wants_parts = wants_parts(tree)
        """Whether contents are to be lists of parts, not texts."""
        self._variables = meta.find_undeclared_variables(environment.parse(text))
        self.dated = "strftime_now" in self._variables
        """Whether it may write the time, which may differ from the engine's."""
        self._special_tokens = dict(special_tokens)
        self._knows_developer = '"developer"' in text or "'developer'" in text

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        more: Mapping[str, Any] | None = None,
        limit: int = 1 << 25,
        clock: Callable[[], float] = monotonic,
    ) -> str:
        """Return the prompt's text, at most `limit` characters. Raises Unlike.

        `more` are the request's own keywords; those not used by the template are dropped.
        """
        if continue_final_message and add_generation_prompt:
            raise Unlike("continues and begins a message")
        if not messages:
            raise Unlike("no messages")
        conversation = messages if self._knows_developer else without_developers(messages)
        last = ""
        if continue_final_message:
            if "content" not in self.text:
                raise Unlike("nothing to continue")
            conversation, last = to_continue(conversation)
        keywords = {
            **self._special_tokens,
            **self._named(more or {}),
            "messages": conversation,
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
        }
        text = self._run(keywords, limit, clock)
        return cut(text, last) if continue_final_message else text

    def _named(self, more: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keywords that reach the template."""
        if not _REFUSED.isdisjoint(more):
            raise Unlike("odd template keywords")
        return {
            name: value
            for name, value in more.items()
            if name in self._variables and name not in _SWALLOWED
        }

    def _run(self, keywords: Mapping[str, Any], limit: int, clock: Callable[[], float]) -> str:
        try:
            return run(self._template, keywords, Watch(limit, PATIENCE_S, clock))
        except Unlike:
            raise
        except jinja2.TemplateError:
            raise Unlike("refused by the template") from None
        except Exception:  # noqa: BLE001 - a template may do whatever Python's operators do
            raise Unlike("a fault of the template") from None
