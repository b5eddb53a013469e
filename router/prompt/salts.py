"""Separate caches per API key: a prompt of one key never hits the cached prefix of another.

An engine's prefix cache is shared by all clients, so the TTFT reveals whether somebody else has
sent the same prompt. vLLM keeps prompts with different `cache_salt` apart
(`entrypoints/generate/base/protocol.py`: up to 128 characters). Here each request gets the salt of
its key, whatever salt it asks for.
"""

from collections.abc import Mapping
from hashlib import sha256
from hmac import new

from router.api.endpoints import Endpoint, Salted
from router.api.errors import BadRequest
from router.api.request import Request
from router.settings.model import Settings

#: The message that a salt is the HMAC of, so that it is useless for any other purpose.
_PURPOSE = b"warmroute cache_salt"
#: Hexadecimal digits of a salt: 128 bits, which nobody can guess.
_LENGTH = 32


class Salts:
    """The salt of each key; empty unless `auth.separate_caches` is set.

    A request uses the salt of the settings that its key was checked by: after a reload, the same
    name may belong to another key.
    """

    __slots__ = ("_operators", "by_name")

    def __init__(self, settings: Settings) -> None:
        self._operators = bool(settings.admin.keys)
        self.by_name: Mapping[str, str] = {}
        if settings.auth is not None and settings.auth.separate_caches:
            keys = {key.name: key.key for key in settings.client_keys}
            keys |= {key.access_key: key.secret_key for key in settings.sagemaker.sigv4}
            self.by_name = {name: _salt(key.get_secret_value()) for name, key in keys.items()}

    def meant(self, key: str, asker: str) -> str:
        """Return the name of the key whose cache the key named `asker` asks about.

        Operators may name any key as `key`; other keys see only their own cache. Raises BadRequest.
        """
        refusal = ""
        if self.by_name and not self._operators:
            key = key or asker
            if key != asker:
                refusal = "Without `admin.keys`, each key is told of its own cache alone."
        elif self.by_name and not key:
            refusal = "Each key has a cache of its own: say whose, by its name."
        else:
            refusal = self.unknown(key)
        if refusal:
            raise BadRequest(refusal, param="key")
        return key

    def unknown(self, key: str) -> str:
        """Say which keys have caches of their own, if `key` is given and none of them."""
        if not key or key in self.by_name:
            return ""
        known = ", ".join(self.by_name) or "none here"
        return f"{key!r} is no key with a cache of its own; there are {known}."


def give(endpoint: Endpoint, request: Request, salt: str) -> bytes:
    """Give a request the salt of its key; return the field for its body, if any.

    A salt from the client separates its prompts further, within its key. Raises BadRequest if that
    is not a text, or if the engine could not keep the request apart.
    """
    if endpoint.salted is Salted.NEEDLESS:
        return b""
    if endpoint.salted is Salted.CANNOT:
        raise BadRequest(
            f"{endpoint.path} cannot be used here: each key has a KV cache of its own"
            " (`auth.separate_caches`), and engines have no `cache_salt` on this path."
        )
    own = request.cache_salt
    if own is not None:
        if not isinstance(own, str) or not own:
            raise BadRequest("`cache_salt` must be a text, and not empty.", param="cache_salt")
        salt = _salt(salt, own.encode("utf-8", "surrogatepass"))
    request.cache_salt = salt
    return b'"cache_salt":"%b"' % salt.encode()


def _salt(key: str, of: bytes = _PURPOSE) -> str:
    return new(key.encode(), of, sha256).hexdigest()[:_LENGTH]
