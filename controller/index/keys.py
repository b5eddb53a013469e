"""Chained keys of the blocks in a stored event, from tokens and whatever else names cover."""

import msgspec

from controller.events.decode import Stored
from strategies.prefix.block_keys import even_chain, even_root, extra_key

_encode = msgspec.msgpack.Encoder().encode


def root_of(event: Stored) -> int:
    """Return the key before the first block of a sequence."""
    return even_root(event.adapter, _salt(event) if event.extras else "")


def keys_of(event: Stored, root: int) -> list[int]:
    """Return the key of each block; `root` is the key before the first."""
    if event.extras is None:
        return even_chain(root, event.tokens, event.size)
    return _with_extras(root, event)


def _salt(event: Stored) -> str:
    """Return the salt: the only text among the first block's extras, apart from the adapter."""
    first = event.extras[0] if event.extras else None
    given = first if isinstance(first, list) else []
    texts = [one for one in given if isinstance(one, str) and one != event.adapter]
    return texts[0] if len(texts) == 1 else ""


def _with_extras(root: int, event: Stored) -> list[int]:
    """Return the keys of blocks whose names cover more than tokens, such as images.

    The adapter and the salt are part of the root already.
    """
    salt = _salt(event) if event.parent is None else ""
    keys, key, width = [], root, 4 * event.size
    extras = event.extras or ()
    for number in range(len(event.hashes)):
        block = event.tokens[number * width : (number + 1) * width]
        (key,) = even_chain(key, block, event.size)
        given = extras[number] if number < len(extras) else None
        known = [event.adapter, salt] if salt and not number else [event.adapter]
        more = [one for one in given if one not in known] if isinstance(given, list) else []
        if more:
            key = extra_key(key, _encode(more))
        keys.append(key)
    return keys
