"""`/tokenize` and `/detokenize`, which need no engine."""

from simulator import bodies
from simulator.bodies import decode
from simulator.errors import bad_request
from simulator.exchange import Exchange
from simulator.served import Served
from simulator.template import render
from simulator.tokens import detokenize, tokenize


async def tokenize_request(served: Served, exchange: Exchange) -> None:
    """`POST /tokenize`: the ids of a prompt, or of a conversation as the template renders it."""
    body = decode(await exchange.body(), bodies.Tokenize)
    served.resolve(body.model)
    if body.messages is not None:
        text = render(
            body.messages,
            body.tools,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
        )
    elif body.prompt is not None:
        text = body.prompt
    else:
        raise bad_request("Either 'prompt' or 'messages' is required.", "prompt")
    tokens = tokenize(text)
    await exchange.json(
        {
            "count": len(tokens),
            "max_model_len": served.max_model_len,
            "tokens": tokens.tolist(),
            "token_strs": None,
        }
    )


async def detokenize_request(served: Served, exchange: Exchange) -> None:
    """`POST /detokenize`: the text of token ids."""
    body = decode(await exchange.body(), bodies.Detokenize)
    served.resolve(body.model)
    await exchange.json({"prompt": detokenize(body.tokens)})
