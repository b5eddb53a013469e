"""Tools of which a request says that none may be chosen: in the prompt all the same, or not. Pure.

Engines write them; with `--exclude-tools-when-tool-choice-none` they do not (vLLM
renderers/online_renderer.py, `render_chat`, and openai/responses/utils.py,
`construct_tool_dicts`).
"""

from router.identity.asked import Body
from router.identity.unlike import Unlike

NONE = "none"
#: Why a chat with such tools is keyed by its text, until the workers were asked.
UNKNOWN = "tools that engines may leave out"


def chosen(asked: Body, *, left_out: bool | None) -> Body:
    """Return a chat in any dialect as an engine reads it that leaves such tools out, or not.

    With None it is not known what it does. Raises Unlike.
    """
    if left_out is False or not asked.get("tools"):
        return asked
    choice = asked.get("tool_choice")
    if isinstance(choice, dict):  # of `/v1/messages`
        choice = choice.get("type")
    if choice != NONE:
        return asked
    if left_out is None:
        raise Unlike(UNKNOWN)
    return {name: value for name, value in asked.items() if name != "tools"}
