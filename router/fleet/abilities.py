"""What a worker tells of the endpoints and media that it serves."""

from collections.abc import Awaitable, Callable, Collection

import msgspec

from router.api.request import ENDPOINTS, Prompted
from router.upstream.client import Answer

#: FastAPI's description of all paths. vLLM adds only those of the model's tasks (`build_app` in
#: vllm/entrypoints/openai/api_server.py); SGLang adds all.
PATHS = "/openapi.json"
#: SGLang's description of its model, and the older path of that (sglang/srt/entrypoints).
MODEL = ("/model_info", "/get_model_info")
#: Most lists and objects in such a description that is read; vLLM's has some ten thousand.
MOST_THINGS = 1 << 17

#: What a model that generates does not do, and what one that does not generate cannot.
_EMBEDS = frozenset(
    path for path, one in ENDPOINTS.items() if one.prompted is Prompted.INPUT and not one.answers
)
_GENERATES = frozenset(path for path, one in ENDPOINTS.items() if one.answers and not one.form)


class _Api(msgspec.Struct):
    paths: dict[str, msgspec.Raw]


class _Model(msgspec.Struct):
    is_generation: bool | None = None
    has_image_understanding: bool | None = None
    has_audio_understanding: bool | None = None


_api = msgspec.json.Decoder(_Api)
_model = msgspec.json.Decoder(_Model)


async def lacking(ask: Callable[[str], Awaitable[Answer]]) -> frozenset[str]:
    """Return the paths of endpoints, and kinds of media, that a worker says it does not serve.

    `ask` fetches a document from it. Raises what that raises.
    """
    paths = _paths(await ask(PATHS))
    found = [path for path in ENDPOINTS if not _serves(paths, path)]
    if len(found) == len(ENDPOINTS):  # it tells of none, so there may be any
        return frozenset()
    described = next((path for path in MODEL if path in paths), None)
    return frozenset(found) | (_unable(await ask(described)) if described else frozenset())


def _paths(answer: Answer) -> Collection[str]:
    body = answer.body
    if not answer.good or body.count(b"{") + body.count(b"[") > MOST_THINGS:
        return ()
    try:
        return _api.decode(body).paths
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ()


def _serves(paths: Collection[str], path: str) -> bool:
    """Whether a path is among these, perhaps as one of all below a prefix (`/v1/{rest}`)."""
    return path in paths or any(
        path.startswith(one.partition("{")[0]) for one in paths if "{" in one
    )


def _unable(answer: Answer) -> frozenset[str]:
    """Return what SGLang's description of the model excludes."""
    try:
        told = _model.decode(answer.body) if answer.good else _Model()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        told = _Model()
    found = set[str]()
    if told.is_generation is not None:
        found |= _EMBEDS if told.is_generation else _GENERATES
    if told.has_image_understanding is False:
        found.add("images")
    if told.has_audio_understanding is False:
        found.add("audio")
    return frozenset(found)
