"""The endpoints that generate text."""

from __future__ import annotations

import uuid
from array import array

import msgspec

from simulator.api import bodies
from simulator.api.bodies import decode
from simulator.api.dialects import MessagesShape, ResponsesShape
from simulator.api.formats import ChatShape, CompletionShape
from simulator.api.generation import Generation, Length, Shape
from simulator.api.prompts import as_prompts, token_ids, with_options
from simulator.api.served_model import Prompt, Served
from simulator.api.sources import Asked
from simulator.http.exchange import Exchange
from simulator.model.conversation import Conversation, Message
from simulator.model.language import Language


async def chat(served: Served, exchange: Exchange) -> None:
    """`POST /v1/chat/completions`."""
    body = decode(await exchange.body(), bodies.Chat)
    model, adapter = served.resolve(body.model)
    prompt = with_options(_chat_tokens(served.language, body), body, adapter)
    shape = ChatShape(
        _id("chatcmpl", exchange), model, Asked.by(body), include_usage=_include_usage(body)
    )
    await _generate(served, exchange, [prompt], body, shape)


async def completions(served: Served, exchange: Exchange) -> None:
    """`POST /v1/completions`."""
    body = decode(await exchange.body(), bodies.Completion)
    model, adapter = served.resolve(body.model)
    found = as_prompts(served.language, body.prompt, special=body.add_special_tokens)
    prompts = [with_options(tokens, body, adapter) for tokens in found]
    shape = CompletionShape(
        _id("cmpl", exchange), model, Asked.by(body), include_usage=_include_usage(body)
    )
    await _generate(served, exchange, prompts, body, shape)


async def invocations(served: Served, exchange: Exchange) -> None:
    """`POST /invocations` (SageMaker): a chat if the body has `messages`, else a completion."""
    fields = decode(await exchange.body(), dict[str, msgspec.Raw])
    await (chat if "messages" in fields else completions)(served, exchange)


async def responses(served: Served, exchange: Exchange) -> None:
    """`POST /v1/responses`."""
    body = decode(await exchange.body(), bodies.Responses)
    model, adapter = served.resolve(body.model)
    messages: list[Message] = []
    if body.instructions:
        messages.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        messages.append({"role": "user", "content": body.input})
    else:
        messages += [item for item in body.input if isinstance(item, dict)]
    tokens = served.language.chat(Conversation(messages=messages, tools=body.tools))
    prompt = Prompt(tokens, adapter, body.cache_salt)
    length = Length(body.max_output_tokens, param="max_output_tokens")
    generation = Generation(served, exchange, [prompt], length)
    shape = ResponsesShape(_id("resp", exchange), model)
    await (generation.stream if body.stream else generation.answer)(shape)


async def messages(served: Served, exchange: Exchange) -> None:
    """`POST /v1/messages`."""
    body = decode(await exchange.body(), bodies.Messages)
    model, adapter = served.resolve(body.model)
    prompt = Prompt(_messages_tokens(served.language, body), adapter)
    generation = Generation(served, exchange, [prompt], Length(body.max_tokens))
    shape = MessagesShape(_id("msg", exchange), model)
    await (generation.stream if body.stream else generation.answer)(shape)


async def count_tokens(served: Served, exchange: Exchange) -> None:
    """`POST /v1/messages/count_tokens`."""
    body = decode(await exchange.body(), bodies.Messages)
    served.resolve(body.model)
    await exchange.json({"input_tokens": len(_messages_tokens(served.language, body))})


async def _generate(
    served: Served,
    exchange: Exchange,
    prompts: list[Prompt],
    body: bodies.Generate,
    shape: Shape,
) -> None:
    length = Length(
        body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens,
        at_least=body.min_tokens or 0,
        ignore_eos=bool(body.ignore_eos),
        param="max_tokens" if body.max_completion_tokens is None else "max_completion_tokens",
    )
    interval = body.stream_interval or 1
    generation = Generation(served, exchange, prompts, length, n=body.n or 1, interval=interval)
    await (generation.stream if body.stream else generation.answer)(shape)


def _chat_tokens(language: Language, body: bodies.Chat) -> array[int]:
    params = body.kv_transfer_params
    if params is not None and params.prompt_token_ids is not None:
        param = "kv_transfer_params.prompt_token_ids"
        return token_ids(params.prompt_token_ids, param, language.top)
    keywords = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        keywords["reasoning_effort"] = body.reasoning_effort
        keywords.setdefault("enable_thinking", body.reasoning_effort != "none")
    return language.chat(
        Conversation(
            messages=body.messages,
            tools=body.tools,
            documents=body.documents,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            add_special_tokens=body.add_special_tokens,
            keywords=keywords,
        )
    )


def _messages_tokens(language: Language, body: bodies.Messages) -> array[int]:
    system: list[Message] = []
    if body.system:
        texts = body.system if isinstance(body.system, list) else [body.system]
        joined = "".join(
            str(one.get("text", "")) if isinstance(one, dict) else str(one) for one in texts
        )
        system.append({"role": "system", "content": joined})
    return language.chat(Conversation(messages=[*system, *body.messages], tools=body.tools))


def _include_usage(body: bodies.Generate) -> bool:
    return body.stream_options is not None and bool(body.stream_options.include_usage)


def _id(kind: str, exchange: Exchange) -> str:
    return f"{kind}-{exchange.request_id or uuid.uuid4().hex}"
