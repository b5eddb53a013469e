"""The endpoints that generate text.

`/v1/audio/transcriptions` and `/v1/audio/translations`: a multipart form in, text out.

`/tokenize` and `/detokenize`, which need no engine.
"""

from __future__ import annotations

import re
import uuid
from array import array

import msgspec

from simulator.api import bodies
from simulator.api.bodies import decode
from simulator.api.formats import (
    ChatFormat,
    CompletionFormat,
    MessagesFormat,
    ResponsesFormat,
    TierReport,
)
from simulator.api.generation import AnswerLength, Generation, ResponseFormat
from simulator.api.served_model import (
    ServedModel,
    TokensPrompt,
    as_prompts,
    token_ids,
    with_options,
)
from simulator.http.errors import bad_request
from simulator.http.exchange import AsgiExchange
from simulator.model.language import Language
from simulator.model.tokens import TYPECODE, ChatParams, Message, tokenize


async def chat(served: ServedModel, exchange: AsgiExchange) -> None:
    """`POST /v1/chat/completions`."""
    body = decode(await exchange.body(), bodies.ChatCompletionRequest)
    model, adapter = served.resolve(body.model)
    prompt = with_options(_chat_tokens(served.language, body), body, adapter)
    shape = ChatFormat(
        _id("chatcmpl", exchange), model, TierReport.by(body), include_usage=_include_usage(body)
    )
    await _generate(served, exchange, [prompt], body, shape)


async def completions(served: ServedModel, exchange: AsgiExchange) -> None:
    """`POST /v1/completions`."""
    body = decode(await exchange.body(), bodies.CompletionRequest)
    model, adapter = served.resolve(body.model)
    found = as_prompts(served.language, body.prompt, special=body.add_special_tokens)
    prompts = [with_options(tokens, body, adapter) for tokens in found]
    shape = CompletionFormat(
        _id("cmpl", exchange), model, TierReport.by(body), include_usage=_include_usage(body)
    )
    await _generate(served, exchange, prompts, body, shape)


async def invocations(served: ServedModel, exchange: AsgiExchange) -> None:
    """`POST /invocations` (SageMaker): a chat if the body has `messages`, else a completion."""
    fields = decode(await exchange.body(), dict[str, msgspec.Raw])
    await (chat if "messages" in fields else completions)(served, exchange)


async def responses(served: ServedModel, exchange: AsgiExchange) -> None:
    """`POST /v1/responses`."""
    body = decode(await exchange.body(), bodies.ResponsesRequest)
    model, adapter = served.resolve(body.model)
    messages: list[Message] = []
    if body.instructions:
        messages.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        messages.append({"role": "user", "content": body.input})
    else:
        messages += [item for item in body.input if isinstance(item, dict)]
    tokens = served.language.chat(ChatParams(messages=messages, tools=body.tools))
    prompt = TokensPrompt(tokens, adapter, body.cache_salt)
    length = AnswerLength(body.max_output_tokens, param="max_output_tokens")
    generation = Generation(served, exchange, [prompt], length)
    shape = ResponsesFormat(_id("resp", exchange), model)
    await (generation.stream if body.stream else generation.answer)(shape)


async def messages(served: ServedModel, exchange: AsgiExchange) -> None:
    """`POST /v1/messages`."""
    body = decode(await exchange.body(), bodies.MessagesRequest)
    model, adapter = served.resolve(body.model)
    prompt = TokensPrompt(_messages_tokens(served.language, body), adapter)
    generation = Generation(served, exchange, [prompt], AnswerLength(body.max_tokens))
    shape = MessagesFormat(_id("msg", exchange), model)
    await (generation.stream if body.stream else generation.answer)(shape)


async def count_tokens(served: ServedModel, exchange: AsgiExchange) -> None:
    """`POST /v1/messages/count_tokens`."""
    body = decode(await exchange.body(), bodies.MessagesRequest)
    served.resolve(body.model)
    await exchange.json({"input_tokens": len(_messages_tokens(served.language, body))})


async def _generate(
    served: ServedModel,
    exchange: AsgiExchange,
    prompts: list[TokensPrompt],
    body: bodies.GenerateRequest,
    shape: ResponseFormat,
) -> None:
    length = AnswerLength(
        body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens,
        at_least=body.min_tokens or 0,
        ignore_eos=bool(body.ignore_eos),
        param="max_tokens" if body.max_completion_tokens is None else "max_completion_tokens",
    )
    interval = body.stream_interval or 1
    generation = Generation(served, exchange, prompts, length, n=body.n or 1, interval=interval)
    await (generation.stream if body.stream else generation.answer)(shape)


def _chat_tokens(language: Language, body: bodies.ChatCompletionRequest) -> array[int]:
    params = body.kv_transfer_params
    if params is not None and params.prompt_token_ids is not None:
        param = "kv_transfer_params.prompt_token_ids"
        return token_ids(params.prompt_token_ids, param, language.top)
    keywords = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        keywords["reasoning_effort"] = body.reasoning_effort
        keywords.setdefault("enable_thinking", body.reasoning_effort != "none")
    return language.chat(
        ChatParams(
            messages=body.messages,
            tools=body.tools,
            documents=body.documents,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            add_special_tokens=body.add_special_tokens,
            keywords=keywords,
        )
    )


def _messages_tokens(language: Language, body: bodies.MessagesRequest) -> array[int]:
    system: list[Message] = []
    if body.system:
        texts = body.system if isinstance(body.system, list) else [body.system]
        joined = "".join(
            str(one.get("text", "")) if isinstance(one, dict) else str(one) for one in texts
        )
        system.append({"role": "system", "content": joined})
    return language.chat(ChatParams(messages=[*system, *body.messages], tools=body.tools))


def _include_usage(body: bodies.GenerateRequest) -> bool:
    return body.stream_options is not None and bool(body.stream_options.include_usage)


def _id(kind: str, exchange: AsgiExchange) -> str:
    return f"{kind}-{exchange.request_id or uuid.uuid4().hex}"


_BOUNDARY = re.compile(rb'boundary="?([^";]+)')
_NAME = re.compile(rb'[; ]name="([^"]*)"')

#: Bytes of a second of 16 kHz, 16-bit mono sound.
_BYTES_A_SECOND = 32_000
#: Whisper's encoder turns 30 s of sound into 1500 positions.
_TOKENS_A_SECOND = 50
_LONGEST_S = 30


async def transcribe(served: ServedModel, exchange: AsgiExchange) -> None:
    """Answer with the text that the simulated model recognizes."""
    fields = form(exchange.headers.get(b"content-type", b""), await exchange.body())
    sound = fields.get("file")
    if sound is None:
        raise bad_request("A file is required.", "file")
    _, adapter = served.resolve(fields.get("model", b"").decode("utf-8", "replace"))
    seconds = min(_LONGEST_S, 1 + len(sound) // _BYTES_A_SECOND)
    generation = Generation(
        served,
        exchange,
        [TokensPrompt(_tokens(sound, seconds * _TOKENS_A_SECOND), adapter)],
        AnswerLength(),
    )
    await generation.run()
    text = generation.choices[0].answer.text()
    if fields.get("response_format") == b"text":
        await exchange.reply(text.encode(), b"text/plain; charset=utf-8")
        return
    await exchange.json({"text": text, "usage": {"type": "duration", "seconds": seconds}})


def form(content_type: bytes, body: bytes) -> dict[str, bytes]:
    """The parts of a `multipart/form-data` body, by name."""
    boundary = _BOUNDARY.search(content_type)
    if boundary is None:
        raise bad_request("A multipart/form-data body is required.")
    fields: dict[str, bytes] = {}
    for part in body.split(b"--" + boundary[1])[1:]:
        head, found, content = part.partition(b"\r\n\r\n")
        name = _NAME.search(head)
        if found and name is not None:
            fields[name[1].decode("utf-8", "replace")] = content.removesuffix(b"\r\n")
    return fields


def _tokens(sound: bytes, count: int) -> array[int]:
    """`count` token ids derived from the bytes of a sound, after a fixed start."""
    start = tokenize("sound")
    if not sound:
        return start
    whole = sound[: 4 * count]
    ring = array(TYPECODE, whole + bytes(-len(whole) % 4))
    return start + array(TYPECODE, (ring[at % len(ring)] for at in range(count)))


async def tokenize_request(served: ServedModel, exchange: AsgiExchange) -> None:
    """`POST /tokenize`: the ids of a prompt, or of a conversation as the template renders it."""
    body = decode(await exchange.body(), bodies.TokenizeRequest)
    served.resolve(body.model)
    language = served.language
    if body.messages is not None:
        tokens = language.chat(
            ChatParams(
                messages=body.messages,
                tools=body.tools,
                add_generation_prompt=body.add_generation_prompt,
                continue_final_message=body.continue_final_message,
                add_special_tokens=bool(body.add_special_tokens),
                keywords=body.chat_template_kwargs or {},
            )
        )
    elif body.prompt is not None:
        tokens = language.tokenize(body.prompt, special=body.add_special_tokens is not False)
    else:
        raise bad_request("Either 'prompt' or 'messages' is required.", "prompt")
    await exchange.json(
        {
            "count": len(tokens),
            "max_model_len": served.max_model_len,
            "tokens": tokens.tolist(),
            "token_strs": language.strings(tokens) if body.return_token_strs else None,
        }
    )


async def detokenize_request(served: ServedModel, exchange: AsgiExchange) -> None:
    """`POST /detokenize`: the text of token ids."""
    body = decode(await exchange.body(), bodies.DetokenizeRequest)
    served.resolve(body.model)
    await exchange.json({"prompt": served.language.detokenize(body.tokens)})
