"""Request bodies: the fields that a simulated worker reads. Others are accepted and ignored."""

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from simulator.http.errors import bad_request

Tokens = list[Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)]]
Input = str | list[Any]
T = TypeVar("T")


class StreamOptions(Struct):
    """`stream_options`."""

    include_usage: bool | None = None


class KvTransferParams(Struct):
    """`kv_transfer_params`: token ids to use as the prompt, and whether to report LMCache stats."""

    prompt_token_ids: Tokens | None = None
    cached_token_stats: Any = None


class GenerateRequest(Struct, kw_only=True):
    """The fields common to chat completions and completions."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    #: Tokens per streamed event (a vLLM extension).
    stream_interval: Annotated[int, Meta(ge=1)] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    cache_salt: str | None = None
    vllm_xargs: dict[str, Any] | None = None
    kv_transfer_params: KvTransferParams | None = None
    #: An SGLang extension.
    return_cached_tokens_details: bool | None = None


class ChatCompletionRequest(GenerateRequest):
    """`/v1/chat/completions`."""

    messages: Annotated[list[dict[str, Any]], Meta(min_length=1)]
    tools: list[Any] | None = None
    documents: list[dict[str, Any]] | None = None
    reasoning_effort: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template_kwargs: dict[str, Any] | None = None


class CompletionRequest(GenerateRequest):
    """`/v1/completions`."""

    prompt: Input
    add_special_tokens: bool = True


class ResponsesRequest(Struct, kw_only=True):
    """`/v1/responses`."""

    input: Input
    model: str | None = None
    instructions: str | None = None
    tools: list[Any] | None = None
    stream: bool | None = None
    max_output_tokens: int | None = None
    cache_salt: str | None = None


class MessagesRequest(Struct, kw_only=True):
    """`/v1/messages`, the Anthropic API."""

    model: str
    messages: Annotated[list[dict[str, Any]], Meta(min_length=1)]
    max_tokens: int | None = None
    system: Input | None = None
    tools: list[Any] | None = None
    stream: bool | None = None


class PoolingRequest(Struct, kw_only=True):
    """`/v1/embeddings`, `/pooling` and `/classify`."""

    input: Input | None = None
    messages: list[dict[str, Any]] | None = None
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1, le=8192)] | None = None


class ScoreRequest(Struct, kw_only=True):
    """`/score`: one text against others, or pairs; `queries`, `documents` are other names."""

    model: str | None = None
    text_1: str | list[str] | None = None
    text_2: str | list[str] | None = None
    queries: str | list[str] | None = None
    documents: str | list[str] | None = None


class RerankRequest(Struct, kw_only=True):
    """`/rerank`."""

    query: str
    documents: list[str]
    model: str | None = None
    top_n: int | None = None


class TokenizeRequest(Struct, kw_only=True):
    """`/tokenize`: a prompt or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[dict[str, Any]], Meta(min_length=1)] | None = None
    tools: list[Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    #: If not given: True for a prompt, False for a conversation.
    add_special_tokens: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Struct, kw_only=True):
    """`/detokenize`."""

    tokens: Tokens
    model: str | None = None


def decode(body: bytes, kind: type[T]) -> T:
    """Decode a request body as `kind`; raises ApiError 400 that says what is wrong."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise bad_request(str(error)) from None
