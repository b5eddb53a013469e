"""Valid session ids, and where a request names its session. Pure.

The end of a session as SageMaker and workers write it. Pure.
"""

import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec

from router.api.errors import BadRequest, Headers
from router.runtime.quote import shown
from router.settings.sessions import SessionSettings

#: SageMaker's header, in both directions between client and platform (botocore's service model
#: `sagemaker-runtime/2017-05-13`, shape InvokeEndpointInput).
AWS_HEADER = b"x-amzn-sagemaker-session-id"
#: Sent in place of an id: start a session with an id of the router's.
NEW_SESSION = "NEW_SESSION"
#: Maximum characters of an id (`SessionIdHeader`), and of one that must fit in a header together
#: with its expiry (`NewSessionResponseHeader`).
MAX_ID_CHARS, MAX_NEW_ID_CHARS = 256, 226
#: The pattern of the same shapes. It never matches `NEW_SESSION`, which has an underscore.
_AWS = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9])*")
#: Ids of other clients that are kept as they are: e-mail addresses and the like.
_PLAIN = re.compile(r"[\x21-\x7e]{1,256}")


def new_id() -> str:
    """Return a new id that cannot be guessed."""
    return str(uuid4())


def is_aws(text: str) -> bool:
    """Whether SageMaker would accept it as an id."""
    return len(text) <= MAX_ID_CHARS and _AWS.fullmatch(text) is not None


def fits(text: str) -> bool:
    """Whether it can be announced to SageMaker's clients as the id of a new session."""
    return len(text) <= MAX_NEW_ID_CHARS and is_aws(text)


def kept(text: str) -> str:
    """Return the form in which an OpenAI client's id is kept, listed and looked up.

    Any text may be one. A hash stands for those that are long or not visible ASCII.
    """
    if _PLAIN.fullmatch(text):
        return text
    return f"sha256-{sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"


class Names(NamedTuple):
    """Where clients that do not use SageMaker's header name their session."""

    header: bytes
    field: str | None
    """A field of the JSON body, read if the header is absent."""

    @classmethod
    def of(cls, settings: SessionSettings) -> "Names":
        """Return what the settings say."""
        return cls(settings.header.encode(), settings.field)

    def find(self, headers: Headers, body: bytes) -> str | None:
        """Return the id as it is `kept`; None if the request names none. Raises BadRequest."""
        session_id = in_headers(headers, (self.header,))
        if not session_id and self.field is not None:
            session_id = in_body(body, self.field)
        return kept(session_id) if session_id else None

    def any(self, headers: Headers, body: bytes) -> bool:
        """Whether the request names a session at all, even wrongly, here or as SageMaker does."""
        try:
            session_id = in_headers(headers, (AWS_HEADER,))
            return session_id is not None or self.find(headers, body) is not None
        except BadRequest:
            return True


def in_headers(headers: Headers, names: Iterable[bytes]) -> str | None:
    """Return the value of the first of `names` that is present. Raises BadRequest.

    A header given twice with different values is refused: another reader might take the other
    value.
    """
    for wanted in names:
        given = None
        for name, value in headers:
            if name == wanted:
                if given is not None and given != value:
                    raise BadRequest(f"The header field `{wanted.decode()}` was given twice.")
                given = value
        if given is not None:
            return _text(given.strip(b" \t"))
    return None


def _text(value: bytes) -> str:
    """Return the text of a header, the same as a field of the body would have."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def in_body(body: bytes, field: str) -> str | None:
    """Return a field of a JSON object, or None. Raises BadRequest if it is neither text nor
    integer."""
    try:
        raw = _decoder(field)(body).value
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None  # what is no JSON object is reported by the code that parses the body
    try:
        value = _value(raw) if len(raw) else None
    except UnicodeError:  # its bytes name a session all the same
        return bytes(raw).decode("latin-1")
    except (msgspec.DecodeError, RecursionError):
        message = f"The field `{field}` must be a text: it names the session."
        raise BadRequest(message, param=field) from None
    return None if value is None else str(value) or None


_value = msgspec.json.Decoder(str | int | None).decode


@lru_cache(maxsize=16)
def _decoder(field: str) -> Callable[[bytes], Any]:
    """Return a decoder that reads only this field and builds no objects for the others."""
    fields = [("value", msgspec.Raw, msgspec.Raw())]  # raw: of fields of one name, the last counts
    return msgspec.json.Decoder(msgspec.defstruct("Found", fields, rename={"value": field})).decode


def check(text: str) -> str:
    """Return an id given in SageMaker's way if it is valid. Raises BadRequest."""
    if not is_aws(text):
        raise BadRequest(
            f"The session id {shown(text)} is not valid: 1 to {MAX_ID_CHARS} letters and digits,"
            " with hyphens between them.",
            param="SessionId",
        )
    return text


_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
_MARK = "expires="


def written(expires: float) -> str:
    """Write seconds since 1970 as UTC in whole seconds, such as `2026-01-02T03:04:05Z`."""
    return _written(int(expires))


@lru_cache(maxsize=4096)  # every response within a session includes it
def _written(expires: int) -> str:
    return datetime.fromtimestamp(expires, UTC).strftime(_FORMAT)


def announced(key: str, expires: float) -> str:
    """Return the value of the header that announces a new session (shape
    `NewSessionResponseHeader`)."""
    return f"{key}; Expires={written(expires)}"


def read(value: str) -> tuple[str, float | None]:
    """Parse a worker's announcement: the id, and the session's end if given.

    The value has `; Expires=` as SageMaker documents it, or is the id alone: AWS's container
    library leaves the rest out if the engine keeps the sessions itself.
    """
    key, _, rest = value.partition(";")
    when = rest.strip()
    if not when.lower().startswith(_MARK):
        return key.strip(), None
    try:
        ends = datetime.strptime(when[len(_MARK) :], _FORMAT).replace(tzinfo=UTC)
    except ValueError:
        return key.strip(), None
    return key.strip(), ends.timestamp()
