"""The endpoints that answer with numbers: embeddings, scores, rankings, classes.

Prompts go through the engine, which computes each of them and generates one token. The numbers in
the answer are derived from the token ids.
"""

from __future__ import annotations

import base64
import math
import random
import time
import uuid
from array import array
from collections.abc import Sequence
from itertools import product
from typing import Any

from simulator.api import models
from simulator.api.generation import AnswerLength, Generation
from simulator.api.models import decode
from simulator.api.served_model import ServedModel, TokensPrompt, as_prompts
from simulator.http.errors import bad_request
from simulator.http.exchange import AsgiExchange
from simulator.model.answers import seed
from simulator.model.tokens import ChatParams

_DIMENSIONS = 64
_LABELS = ("LABEL_0", "LABEL_1")


async def embeddings(served: ServedModel, exchange: AsgiExchange) -> None:
    """`POST /v1/embeddings`; vectors of unit length, as numbers or as base64 of float32."""
    body = decode(await exchange.body(), models.PoolingRequest)
    prompts, head, usage = await _pool(served, exchange, body, "embd")
    vectors = [_vector(tokens, body.dimensions or _DIMENSIONS) for tokens in prompts]
    data = [
        {"index": index, "object": "embedding", "embedding": _encoded(vector, body)}
        for index, vector in enumerate(vectors)
    ]
    await exchange.json({**head, "data": data, "usage": usage})


async def pooling(served: ServedModel, exchange: AsgiExchange) -> None:
    """`POST /pooling`."""
    body = decode(await exchange.body(), models.PoolingRequest)
    prompts, head, usage = await _pool(served, exchange, body, "pool")
    data = [
        {"index": index, "object": "pooling", "data": _encoded(_vector(tokens, _DIMENSIONS), body)}
        for index, tokens in enumerate(prompts)
    ]
    await exchange.json({**head, "data": data, "usage": usage})


async def classify(served: ServedModel, exchange: AsgiExchange) -> None:
    """`POST /classify`; two classes."""
    body = decode(await exchange.body(), models.PoolingRequest)
    prompts, head, usage = await _pool(served, exchange, body, "classify")
    data = []
    for index, tokens in enumerate(prompts):
        first = _unit(tokens)
        label = _LABELS[0 if first >= 0.5 else 1]
        probs = [first, 1.0 - first]
        data.append({"index": index, "label": label, "probs": probs, "num_classes": 2})
    await exchange.json({**head, "data": data, "usage": usage})


async def score(served: ServedModel, exchange: AsgiExchange) -> None:
    """`POST /score`: one text against each of the others, or pair by pair."""
    body = decode(await exchange.body(), models.ScoreRequest)
    model, adapter = served.resolve(body.model)
    pairs = _pairs(_texts(body.text_1, body.queries), _texts(body.text_2, body.documents))
    prompts = [served.language.tokenize(f"{first}\n{second}") for first, second in pairs]
    total = await _compute(served, exchange, prompts, adapter)
    data = [
        {"index": index, "object": "score", "score": _unit(tokens)}
        for index, tokens in enumerate(prompts)
    ]
    await exchange.json({**_head("score", model), "data": data, "usage": _usage(total)})


async def rerank(served: ServedModel, exchange: AsgiExchange) -> None:
    """`POST /rerank`; the best documents first."""
    body = decode(await exchange.body(), models.RerankRequest)
    model, adapter = served.resolve(body.model)
    if not body.documents:
        raise bad_request("There must be at least one document.", "documents")
    language = served.language
    prompts = [language.tokenize(f"{body.query}\n{document}") for document in body.documents]
    total = await _compute(served, exchange, prompts, adapter)
    results = [
        {"index": index, "document": {"text": text}, "relevance_score": _unit(tokens)}
        for index, (text, tokens) in enumerate(zip(body.documents, prompts, strict=True))
    ]
    results.sort(key=lambda result: -float(str(result["relevance_score"])))
    if body.top_n and body.top_n > 0:
        results = results[: body.top_n]
    answer = {"id": f"rerank-{uuid.uuid4().hex}", "model": model, "results": results}
    await exchange.json({**answer, "usage": _usage(total)})


async def _pool(
    served: ServedModel, exchange: AsgiExchange, body: models.PoolingRequest, kind: str
) -> tuple[list[array[int]], dict[str, Any], dict[str, int]]:
    """Compute a body's prompts; return their tokens, and the head and usage of the answer."""
    model, adapter = served.resolve(body.model)
    if body.messages:
        chat = ChatParams(messages=body.messages, add_generation_prompt=False)
        prompts = [served.language.chat(chat)]
    elif body.input is not None:
        prompts = as_prompts(served.language, body.input, "input")
    else:
        raise bad_request("Either 'input' or 'messages' is required.", "input")
    total = await _compute(served, exchange, prompts, adapter)
    return prompts, _head(kind, model), _usage(total)


async def _compute(
    served: ServedModel, exchange: AsgiExchange, prompts: Sequence[array[int]], adapter: str | None
) -> int:
    """Run the prompts through the engine; return how many tokens they have in all."""
    todo = [TokensPrompt(tokens, adapter) for tokens in prompts]
    usage = await Generation(served, exchange, todo, AnswerLength(1, param="input")).run()
    return usage.prompt


def _head(kind: str, model: str) -> dict[str, Any]:
    answer_id = f"{kind}-{uuid.uuid4().hex}"
    return {"id": answer_id, "object": "list", "created": int(time.time()), "model": model}


def _usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0}


def _vector(tokens: array[int], dimensions: int) -> list[float]:
    source = random.Random(seed(tokens))
    values = [source.gauss(0.0, 1.0) for _ in range(dimensions)]
    norm = math.sqrt(sum(value * value for value in values))
    return [value / norm for value in values]


def _encoded(vector: list[float], body: models.PoolingRequest) -> list[float] | str:
    if body.encoding_format == "base64":
        return base64.b64encode(array("f", vector).tobytes()).decode()
    return vector


def _unit(tokens: array[int]) -> float:
    """Return a number from 0 to 1 derived from the tokens."""
    return seed(tokens) / 0xFFFF_FFFF


def _texts(*fields: str | list[str] | None) -> list[str]:
    for texts in fields:
        if texts is not None:
            return [texts] if isinstance(texts, str) else texts
    raise bad_request("Two texts, or lists of them, are required.")


def _pairs(first: list[str], second: list[str]) -> list[tuple[str, str]]:
    if not first or not second:
        raise bad_request("At least one text on either side is required.")
    if len(first) == len(second):
        return list(zip(first, second, strict=True))
    if len(first) != 1:
        raise bad_request("Input lengths must be either 1:1, 1:N or N:N")
    return list(product(first, second))
