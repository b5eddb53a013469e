"""Whether the tools of a request with `tool_choice: none` are in its prompt. Pure.

Engines write them into the prompt, unless started with `--exclude-tools-when-tool-choice-none`
(vLLM renderers/online_renderer.py, `render_chat`, and openai/responses/utils.py,
`construct_tool_dicts`).
"""

from router.rendering.body import Body
from router.rendering.errors import Unlike

NONE = "none"
#: Why a chat with such tools is keyed by its text until the workers were asked.
UNKNOWN = "tools that engines may leave out"


def chosen(asked: Body, *, left_out: bool | None) -> Body:
    """Return a chat in any dialect, without its tools if the engine leaves them out.

    `left_out` says whether it does; None: not known. Raises Unlike.
    """
    if left_out is False or not asked.get("tools"):
        return asked
    choice = asked.get("tool_choice")
    if isinstance(choice, dict):  # as in `/v1/messages`
        choice = choice.get("type")
    if choice != NONE:
        return asked
    if left_out is None:
        raise Unlike(UNKNOWN)
    return {name: value for name, value in asked.items() if name != "tools"}
