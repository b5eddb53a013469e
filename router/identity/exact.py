"""A request's prompt as the ids that its engine will compute, for one model."""

from array import array
from collections.abc import Mapping
from typing import Any

import jinja2
import msgspec

from router.identity.conversation import conversation, tools
from router.identity.dialects import chat_of_messages, chat_of_responses
from router.identity.folder import BadFolder, ModelFolder
from router.identity.template import ChatTemplate
from router.identity.tokenizer import Tokenizer
from router.identity.unlike import Unlike
from router.openai import Endpoint, Prompted

_decode = msgspec.json.Decoder().decode
#: Models whose prompts engines build by a program of their own, not by a chat template.
PROGRAMS = frozenset(("gpt_oss", "deepseek_v32", "deepseek_v4", "kimi_k3", "inkling"))
#: Characters that a template may make of one character of the request, at most, and some more.
_GROWTH, _MARGIN = 4, 1 << 20

Body = Mapping[str, Any]


class Exact:
    """Knows one model's tokens. May be used by several threads at once."""

    def __init__(
        self,
        folder: ModelFolder,
        tokenizer: Tokenizer,
        *,
        keywords: Mapping[str, Any] | None = None,
    ) -> None:
        """`keywords` are those that the engine gives every template. Raises BadFolder."""
        self._tokenizer = tokenizer
        self._keywords = dict(keywords or {})
        self._own_program = folder.model_type in PROGRAMS
        self._plain = _template(folder, with_tools=False)
        self._tooled = _template(folder, with_tools=True)

    def ids(self, endpoint: Endpoint, body: bytes) -> bytes:
        """Return the prompt's ids, 32 bits each, lowest byte first. Raises Unlike."""
        try:
            asked = _decode(body)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            raise Unlike("not understood") from None
        if not isinstance(asked, dict):
            raise Unlike("not understood")
        if asked.get("truncate_prompt_tokens") is not None:
            raise Unlike("truncated by the engine")
        match endpoint.prompted:
            case Prompted.CHAT:
                return self._chat(asked, len(body))
            case Prompted.RESPONSES:
                return self._chat(chat_of_responses(asked), len(body))
            case Prompted.MESSAGES:
                return self._chat(chat_of_messages(asked), len(body))
            case Prompted.COMPLETION:
                return self._plain_text(asked, "prompt")
            case Prompted.INPUT:
                return self._plain_text(asked, "input")
            case Prompted.NOTHING:
                raise Unlike("no prompt")

    def _chat(self, asked: Body, size: int) -> bytes:
        given = asked.get("kv_transfer_params")
        if isinstance(given, dict) and given.get("prompt_token_ids") is not None:
            return _packed(given["prompt_token_ids"])
        if self._own_program:
            raise Unlike("no chat template")
        if asked.get("chat_template") is not None:
            raise Unlike("a template of its own")
        tooled = tools(asked.get("tools"))
        template = self._plain if tooled is None else self._tooled
        if template is None:
            raise Unlike("no chat template")
        text = template.render(
            conversation(asked.get("messages"), parts=template.wants_parts),
            tools=tooled,
            documents=_documents(asked),
            add_generation_prompt=_flag(asked, "add_generation_prompt", default=True),
            continue_final_message=_flag(asked, "continue_final_message", default=False),
            more=self._more(asked),
            limit=_GROWTH * size + _MARGIN,
        )
        return self._encode(text, special=_flag(asked, "add_special_tokens", default=False))

    def _more(self, asked: Body) -> dict[str, Any]:
        """Return keywords for the template: the engine's, the request's, and what it implies."""
        own = asked.get("chat_template_kwargs") or {}
        effort = asked.get("reasoning_effort")
        if not isinstance(own, dict) or not isinstance(effort, str | None):
            raise Unlike("odd template keywords")
        more = dict(own)
        if effort is not None:
            more["reasoning_effort"] = effort
            more.setdefault("enable_thinking", effort != "none")
        # Engines take these two for "not set" (vLLM renderers/params.py, `merge_kwargs`).
        more = {name: value for name, value in more.items() if value not in (None, "auto")}
        return {**self._keywords, **more}

    def _plain_text(self, asked: Body, field: str) -> bytes:
        if asked.get("prompt_embeds") is not None:
            raise Unlike("embeddings")
        prompt = asked.get(field)
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list):
            prompt = prompt[0]
        if isinstance(prompt, str):
            return self._encode(prompt, special=_flag(asked, "add_special_tokens", default=True))
        return _packed(prompt)

    def _encode(self, text: str, *, special: bool) -> bytes:
        try:
            return self._tokenizer.encode(text, special=special)
        except Exception:  # noqa: BLE001 - lone surrogates, and whatever a library may find
            raise Unlike("not tokenized") from None


def _template(folder: ModelFolder, *, with_tools: bool) -> ChatTemplate | None:
    text = folder.template(tools=with_tools)
    if text is None:
        return None
    try:
        return ChatTemplate(text, folder.special_tokens)
    except jinja2.TemplateError as error:
        raise BadFolder(f"the chat template in {folder.path} is not valid: {error}") from None


def _flag(asked: Body, name: str, *, default: bool) -> bool:
    value = asked.get(name, default)
    if not isinstance(value, bool):
        raise Unlike("odd flags")
    return value


def _documents(asked: Body) -> list[dict[str, Any]] | None:
    found = asked.get("documents")
    if found is not None and not (
        isinstance(found, list) and all(isinstance(one, dict) for one in found)
    ):
        raise Unlike("odd documents")
    return found


def _packed(ids: Any) -> bytes:
    try:
        return array("I", ids if isinstance(ids, list) else None).tobytes()
    except (TypeError, OverflowError):
        raise Unlike("odd token ids") from None
