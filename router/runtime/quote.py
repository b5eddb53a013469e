"""How messages quote a value: short, on one line, and without the secrets of a URL."""

import json
import re


def shown(value: object, longest: int = 60) -> str:
    """Return a value for a message: short, on one line, in YAML's terms; no secret of a URL."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        value = _without_secrets(value)
        short = value if len(value) <= longest else value[:longest] + "…"
        return json.dumps(short, ensure_ascii=False)
    if isinstance(value, int | float):
        return format(value, ".17g")
    if value is None:
        return "nothing"
    return "a list" if isinstance(value, list | tuple) else "a mapping"


def _without_secrets(text: str) -> str:
    """Return a URL with `***` for its user and its query, and any other text as it is.

    A URL may be malformed, or its scheme missing: what may be either is hidden too.
    """
    match = re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text)
    scheme = match[0] if match else ""
    before, at, rest = text.removeprefix(scheme).rpartition("@")
    if at and (scheme or ":" in before):
        # With a `?` or `#` before the `@`, that may be in a password, or the `@` in a query.
        return scheme + ("***" if re.search("[?#]", before) else f"***@{_without_query(rest)}")
    return _without_query(text) if scheme or re.search(r"[?#].*=", text) else text


def _without_query(text: str) -> str:
    return re.sub(r"([?#]).+", r"\1***", text, count=1, flags=re.DOTALL)


def shown_file(path: object) -> str:
    """Return a file's path for a message, with more room than `shown`: its end matters."""
    return f"file {shown(str(path), 400)}"
