"""Errors of a Redis, as sentences that say what to check."""

import os
from asyncio import IncompleteReadError

from redis.exceptions import AuthenticationError, InvalidResponse, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

#: What is shown of a server's message.
MAX_MESSAGE_CHARS = 200


def sentence(url: str, error: Exception, setting: str, *, password: bool) -> str:
    """Return why the Redis at `url` gave no answer.

    `password`: whether the password in `setting` was sent to it.
    """
    if isinstance(error, AuthenticationError):
        if password:
            return f"the Redis at {url} does not take the password of {setting}"
        return f"the Redis at {url} wants a password: give {setting}"
    if isinstance(error, InvalidResponse | IncompleteReadError) or "closed by server" in str(error):
        return f"what listens at {url} is no Redis, or breaks off: {_shown(error)}"
    if isinstance(error, ResponseError):
        return f"the Redis at {url} refuses to answer: {_shown(error)}"
    if isinstance(error, RedisTimeoutError | TimeoutError):
        tls = " (rediss:// needs a Redis with TLS)" if url.startswith("rediss:") else ""
        return f"no Redis answers in time at {url}{tls}"
    return f"no Redis answers at {url}: {_reason(error)}"


def _reason(error: Exception) -> str:
    """Return the reason without repeating the address."""
    cause = error.__cause__ or error.__context__
    number = cause.errno if isinstance(cause, OSError) else None
    return os.strerror(number) if number and number > 0 else _shown(error)


def _shown(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return "".join(letter if letter.isprintable() else "?" for letter in text)[:MAX_MESSAGE_CHARS]
