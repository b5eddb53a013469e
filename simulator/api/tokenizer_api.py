"""`/tokenize` and `/detokenize`, which need no engine."""

from simulator.api import bodies
from simulator.api.bodies import decode
from simulator.api.served_model import Served
from simulator.http.errors import bad_request
from simulator.http.exchange import Exchange
from simulator.model.conversation import Conversation


async def tokenize_request(served: Served, exchange: Exchange) -> None:
    """`POST /tokenize`: the ids of a prompt, or of a conversation as the template renders it."""
    body = decode(await exchange.body(), bodies.Tokenize)
    served.resolve(body.model)
    language = served.language
    if body.messages is not None:
        tokens = language.chat(
            Conversation(
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


async def detokenize_request(served: Served, exchange: Exchange) -> None:
    """`POST /detokenize`: the text of token ids."""
    body = decode(await exchange.body(), bodies.Detokenize)
    served.resolve(body.model)
    await exchange.json({"prompt": served.language.detokenize(body.tokens)})
