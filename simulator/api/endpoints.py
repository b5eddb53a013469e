"""The endpoints that generate text, and those of the tokenizer."""

from __future__ import annotations

import re
import uuid
from array import array

import msgspec

from simulator.api import models
from simulator.api.formats import ChatFormat, CompletionFormat, MessagesFormat, ResponsesFormat
from simulator.api.generation import AnswerLength, Generation, ResponseFormat
from simulator.api.models import decode
from simulator.api.served_model import ServedModel, TokensPrompt, as_prompts, token_ids
from simulator.http.errors import bad_request
from simulator.http.exchange import AsgiExchange
from simulator.model.language import Language
from simulator.model.tokens import TYPECODE, ChatParams, Message, tokenize

_BOUNDARY = re.compile(rb'boundary="?([^";]+)')
_FIELD_NAME = re.compile(rb'[; ]name="([^"]*)"')

#: Bytes of a second of 16 kHz, 16-bit mono sound.
_SOUND_BYTES_PER_S = 32_000
#: Whisper's encoder turns 30 s of sound into 1500 positions.
_SOUND_TOKENS_PER_S = 50
_MAX_SOUND_S = 30


async def chat(served: ServedModel, exchange: AsgiExchange) -> None:
    """`POST /v1/chat/completions`."""
    body = decode(await exchange.body(), models.ChatCompletionRequest)
    model, adapter = served.resolve(body.model)
    prompt = _with_options(_chat_tokens(served.language, body), body, adapter)
    await _generate(
        served, exchange, [prompt], body, ChatFormat(_id("chatcmpl", exchange), model, body)
    )


async def completions(served: ServedModel, exchange: AsgiExchange) -> None:
    """`POST /v1/completions`."""
    body = decode(await exchange.body(), models.CompletionRequest)
    model, adapter = served.resolve(body.model)
    inputs = as_prompts(served.language, body.prompt, special=body.add_special_tokens)
    prompts = [_with_options(tokens, body, adapter) for tokens in inputs]
    await _generate(
        served, exchange, prompts, body, CompletionFormat(_id("cmpl", exchange), model, body)
    )


async def invocations(served: ServedModel, exchange: AsgiExchange) -> None:
    """`POST /invocations` (SageMaker): a chat if the body has `messages`, else a completion."""
    fields = decode(await exchange.body(), dict[str, msgspec.Raw])
    await (chat if "messages" in fields else completions)(served, exchange)


async def responses(served: ServedModel, exchange: AsgiExchange) -> None:
    """`POST /v1/responses`."""
    body = decode(await exchange.body(), models.ResponsesRequest)
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
    answer_format = ResponsesFormat(_id("resp", exchange), model)
    await (generation.stream if body.stream else generation.answer)(answer_format)


async def messages(served: ServedModel, exchange: AsgiExchange) -> None:
    """`POST /v1/messages`."""
    body = decode(await exchange.body(), models.MessagesRequest)
    model, adapter = served.resolve(body.model)
    prompt = TokensPrompt(_messages_tokens(served.language, body), adapter)
    generation = Generation(served, exchange, [prompt], AnswerLength(body.max_tokens))
    answer_format = MessagesFormat(_id("msg", exchange), model)
    await (generation.stream if body.stream else generation.answer)(answer_format)


async def count_tokens(served: ServedModel, exchange: AsgiExchange) -> None:
    """`POST /v1/messages/count_tokens`."""
    body = decode(await exchange.body(), models.MessagesRequest)
    served.resolve(body.model)
    await exchange.json({"input_tokens": len(_messages_tokens(served.language, body))})


async def transcribe(served: ServedModel, exchange: AsgiExchange) -> None:
    """`POST /v1/audio/transcriptions` and `/v1/audio/translations`: a form in, text out."""
    fields = _form(exchange.headers.get(b"content-type", b""), await exchange.body())
    sound = fields.get("file")
    if sound is None:
        raise bad_request("A file is required.", "file")
    _, adapter = served.resolve(fields.get("model", b"").decode("utf-8", "replace"))
    seconds = min(_MAX_SOUND_S, 1 + len(sound) // _SOUND_BYTES_PER_S)
    prompt = TokensPrompt(_sound_tokens(sound, seconds * _SOUND_TOKENS_PER_S), adapter)
    generation = Generation(served, exchange, [prompt], AnswerLength())
    await generation.run()
    text = generation.choices[0].answer.text()
    if fields.get("response_format") == b"text":
        await exchange.reply(text.encode(), b"text/plain; charset=utf-8")
        return
    await exchange.json({"text": text, "usage": {"type": "duration", "seconds": seconds}})


async def tokenize_request(served: ServedModel, exchange: AsgiExchange) -> None:
    """`POST /tokenize`: the ids of a prompt, or of a conversation as the template renders it."""
    body = decode(await exchange.body(), models.TokenizeRequest)
    served.resolve(body.model)
    language = served.language
    if body.messages is not None:
        params = ChatParams(
            messages=body.messages,
            tools=body.tools,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            add_special_tokens=bool(body.add_special_tokens),
            keywords=body.chat_template_kwargs or {},
        )
        tokens = language.chat(params)
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
    body = decode(await exchange.body(), models.DetokenizeRequest)
    served.resolve(body.model)
    await exchange.json({"prompt": served.language.detokenize(body.tokens)})


async def _generate(
    served: ServedModel,
    exchange: AsgiExchange,
    prompts: list[TokensPrompt],
    body: models.GenerateRequest,
    answer_format: ResponseFormat,
) -> None:
    length = AnswerLength(
        body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens,
        at_least=body.min_tokens or 0,
        ignore_eos=bool(body.ignore_eos),
        param="max_tokens" if body.max_completion_tokens is None else "max_completion_tokens",
    )
    interval = body.stream_interval or 1
    generation = Generation(served, exchange, prompts, length, n=body.n or 1, interval=interval)
    await (generation.stream if body.stream else generation.answer)(answer_format)


def _chat_tokens(language: Language, body: models.ChatCompletionRequest) -> array[int]:
    transfer = body.kv_transfer_params
    if transfer is not None and transfer.prompt_token_ids is not None:
        param = "kv_transfer_params.prompt_token_ids"
        return token_ids(transfer.prompt_token_ids, param, language.top)
    keywords = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        keywords["reasoning_effort"] = body.reasoning_effort
        keywords.setdefault("enable_thinking", body.reasoning_effort != "none")
    params = ChatParams(
        messages=body.messages,
        tools=body.tools,
        documents=body.documents,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        add_special_tokens=body.add_special_tokens,
        keywords=keywords,
    )
    return language.chat(params)


def _messages_tokens(language: Language, body: models.MessagesRequest) -> array[int]:
    system: list[Message] = []
    if body.system:
        parts = body.system if isinstance(body.system, list) else [body.system]
        text = "".join(
            str(part.get("text", "")) if isinstance(part, dict) else str(part) for part in parts
        )
        system.append({"role": "system", "content": text})
    return language.chat(ChatParams(messages=[*system, *body.messages], tools=body.tools))


def _with_options(
    tokens: array[int], body: models.GenerateRequest, adapter: str | None
) -> TokensPrompt:
    """Return a prompt with the adapter and the body's cache options."""
    if body.cache_salt == "":
        raise bad_request("Parameter 'cache_salt' must be a non-empty string.", "cache_salt")
    report_mode = (body.vllm_xargs or {}).get("kv_cache_report_mode")
    return TokensPrompt(tokens, adapter, body.cache_salt, report_reuse=report_mode == "full")


def _id(kind: str, exchange: AsgiExchange) -> str:
    return f"{kind}-{exchange.request_id or uuid.uuid4().hex}"


def _form(content_type: bytes, body: bytes) -> dict[str, bytes]:
    """Return the parts of a `multipart/form-data` body, by name."""
    boundary = _BOUNDARY.search(content_type)
    if boundary is None:
        raise bad_request("A multipart/form-data body is required.")
    fields: dict[str, bytes] = {}
    for part in body.split(b"--" + boundary[1])[1:]:
        head, separator, content = part.partition(b"\r\n\r\n")
        name = _FIELD_NAME.search(head)
        if separator and name is not None:
            fields[name[1].decode("utf-8", "replace")] = content.removesuffix(b"\r\n")
    return fields


def _sound_tokens(sound: bytes, count: int) -> array[int]:
    """Return `count` token ids derived from the bytes of a sound, after a fixed start."""
    start = tokenize("sound")
    if not sound:
        return start
    whole = sound[: 4 * count]
    ids = array(TYPECODE, whole + bytes(-len(whole) % 4))
    return start + array(TYPECODE, (ids[index % len(ids)] for index in range(count)))
