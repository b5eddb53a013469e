"""A last message to be continued: its text stays open at the end of the prompt.

Transformers appends a mark to that text, renders, and cuts off the mark and everything after it
(utils/chat_template_utils.py, `render_jinja_template`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

from router.rendering.errors import Unlike

#: Marks where the text of the last message ends.
_END = "CONTINUE_FINAL_MESSAGE_TAG "

Messages = Sequence[Mapping[str, Any]]


def to_continue(messages: Messages) -> tuple[Messages, str]:
    """Mark the end of the last message's text; return the messages and that text. Raises Unlike."""
    *before, message = messages
    content = message.get("content")
    if isinstance(content, str):
        return [*before, {**message, "content": content + _END}], content
    parts = list(content or ())
    for place in range(len(parts) - 1, -1, -1):
        if "text" in parts[place]:
            text: str = parts[place]["text"]
            parts[place] = {**parts[place], "text": text + _END}
            return [*before, {**message, "content": parts}], text
    raise Unlike("nothing to continue")


def cut(text: str, last: str) -> str:
    """Cut off everything after the last message's text. Raises Unlike."""
    mark = _END.strip()
    if last.strip() not in text or mark not in text:
        raise Unlike("nothing to continue")
    at = text.rindex(mark)
    if text[at : at + len(_END)] == _END:
        return text[:at]
    return text[:at].rstrip()  # the template trimmed the mark's space, so it trims the text too
