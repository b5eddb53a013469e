"""Tokens that a model's configuration adds to its tokenizer, or whose flags it changes.

Done as in Transformers (tokenization_utils_tokenizers.py, `TokenizersBackend.__init__`): first
those of `added_tokens_decoder`, then the special tokens that are added tokens neither there nor in
the tokenizer itself.
"""

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer

from router.rendering.decoded import Json
from router.rendering.folder import SPECIAL, UNNAMED, BadFolder

#: Setting that splits special tokens written by users into ordinary tokens.
SPLIT = "split_special_tokens"
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def add(tokenizer: Tokenizer, config: Mapping[str, Any]) -> bool:
    """Add the configuration's tokens; return whether that changed anything. Raises BadFolder."""
    before = tokenizer.to_str() if config else ""
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    told = _told(config)
    known.update(token.content for token in told)
    for special in (*map(config.get, SPECIAL), *_more(config)):
        token = _special(special)
        if token is not None and token.content not in known:
            told.append(token)
            known.add(token.content)
    if not told:
        return False
    tokenizer.add_tokens(told)
    return tokenizer.to_str() != before


def that_count(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a configuration that affects a tokenizer's ids."""
    names = ("added_tokens_decoder", *SPECIAL, *UNNAMED, SPLIT)
    return {name: config[name] for name in names if name in config}


def _told(config: Mapping[str, Any]) -> list[AddedToken]:
    given = config.get("added_tokens_decoder") or {}
    try:
        return [_token(given[place]) for place in sorted(given, key=int)]
    except (AttributeError, KeyError, TypeError, ValueError):
        raise BadFolder("added_tokens_decoder of tokenizer_config.json is not valid") from None


def _token(given: Json) -> AddedToken:
    flags = {name: bool(given[name]) for name in _FLAGS if name in given}
    return AddedToken(given["content"], **flags)


def _special(given: Json) -> AddedToken | None:
    if isinstance(given, dict) and isinstance(given.get("content"), str):
        return _token({**given, "special": True})
    return AddedToken(given, special=True) if isinstance(given, str) else None


def _more(config: Mapping[str, Any]) -> list[Json]:
    """Special tokens without a name of their own; the second is the older spelling."""
    found = next((config[name] for name in UNNAMED if config.get(name)), None)
    return found if isinstance(found, list) else []
