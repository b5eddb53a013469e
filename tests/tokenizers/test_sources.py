"""Where to look for a tokenizer, and what identifies a model in keys."""

from typing import Any

import pytest

from router.tokenizers.sources import SourceKind, fingerprint, identity, is_adapter, origin
from tests.tokenizers.engine import card

LLAMA = {one["id"]: one for one in (card("llama", "/m/llama"), card("alias", "/m/llama"))}
TUNED = card("tuned", "/lora/a", "llama")


@pytest.mark.parametrize(
    ("source", "kind", "name"),
    [
        ("bytes", SourceKind.TEXT, ""),
        ("worker", SourceKind.WORKER, "/m/llama"),
        ("/m/other", SourceKind.FOLDER, "/m/other"),
        ("org/name", SourceKind.HUB, "org/name"),
        ("auto", SourceKind.FOLDER, "/m/llama"),
    ],
)
def test_what_settings_say(source: str, kind: SourceKind, name: str) -> None:
    """The settings take precedence over what a worker reports."""
    found = origin(source, "llama", LLAMA)
    assert (found.kind, found.name, found.told) == (kind, name, source not in {"auto", "bytes"})


@pytest.mark.parametrize(
    ("root", "kind"),
    [
        ("/m/llama", SourceKind.FOLDER),
        ("org/name", SourceKind.HUB),
        ("llama", SourceKind.TEXT),
        ("./llama", SourceKind.TEXT),
        ("../../etc/x", SourceKind.TEXT),
        ("s3://bucket/llama", SourceKind.TEXT),
        ("", SourceKind.TEXT),
        (None, SourceKind.TEXT),
        (5, SourceKind.TEXT),
        (["/m/llama"], SourceKind.TEXT),
    ],
)
def test_what_a_worker_tells(root: Any, kind: SourceKind) -> None:
    """Absolute paths and hub ids are used; anything else is ignored."""
    assert origin("auto", "m", {"m": {"id": "m", "root": root}}).kind is kind


@pytest.mark.parametrize(
    ("parent", "more", "name"),
    [
        ("llama", {}, "/m/llama"),
        ("meta/any-name", {}, "/m/llama"),  # the only base there is
        ("meta/any-name", {"other": card("other", "/m/other")}, ""),
        ("tuned", {}, "/m/llama"),  # its own
    ],
)
def test_adapters_have_their_base_models(parent: str, more: dict[str, Any], name: str) -> None:
    """Never a tokenizer from the adapter's own folder."""
    models = {**LLAMA, **more, "tuned": {**TUNED, "parent": parent}}
    assert origin("auto", "tuned", models).name == name


def test_identities() -> None:
    """One identity for all names of a base model, and one for each name of an adapter."""
    models = {**LLAMA, "tuned": TUNED, "again": card("again", "/lora/a", "llama")}
    models |= {"moved": card("tuned", "/lora/b", "llama"), "plain": {"id": "plain"}}
    assert identity("llama", models) == identity("alias", models) == "/m/llama"
    others = ("tuned", "again", "plain", "llama")
    assert len({identity(name, models) for name in others}) == len(others)
    assert identity("plain", models) == identity("plain", {}) == "plain"
    assert identity("tuned", models) != identity("tuned", {"tuned": models["moved"]})
    assert [is_adapter(name, models) for name in ("llama", "tuned")] == [False, True]


def test_fingerprints() -> None:
    """The time in an engine's answer does not count as a change of model."""
    now, later = ({"llama": {**LLAMA["llama"], "created": time}} for time in (1, 2))
    assert fingerprint(now) == fingerprint(later)
    assert fingerprint(now) != fingerprint({"llama": card("llama", "/m/llama-2")})
