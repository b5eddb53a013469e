"""Where to look for a model's tokenizer, according to the settings and the workers. Pure."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from router.tokenizers.hub import is_hub_id

Described = Mapping[str, Mapping[str, Any]]
"""A worker's models by name, each as described by its `/v1/models`."""

Fingerprint = Mapping[str, tuple[str | None, str | None]]
"""The part of `Described` that matters here: what each model was loaded from, and its base."""

_SAID = "the settings say so"


class Kind(StrEnum):
    """The kind of a source."""

    FOLDER = "folder"
    HUB = "hub"
    WORKER = "worker"
    TEXT = "text"
    """No source: prompts are keyed by their text."""


class Origin(NamedTuple):
    """A tokenizer source."""

    kind: Kind
    name: str = ""
    """The folder's path, or the hub id; for workers, what they have loaded."""
    why: str = ""
    """Why this source was chosen."""
    told: bool = False
    """Whether the settings name it, in which case its absence is a mistake."""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".strip()


def origin(source: str, model: str, described: Described) -> Origin:
    """Return where to look for the tokenizer of `model`, which a worker has `described`.

    `source` is the setting. With `auto`, it is where the engine loaded the weights from, as the
    tokenizer lies beside them. An adapter uses its base model's.
    """
    if source == "bytes":
        return Origin(Kind.TEXT, why=_SAID)
    if source == "worker":
        return at_workers(model, described, _SAID)._replace(told=True)
    if source != "auto":
        found = _named(source, _SAID) or Origin(Kind.TEXT, why="the settings name no tokenizer")
        return found._replace(told=True)
    root = _root(model, described)
    if root is None:
        return Origin(Kind.TEXT, why="its workers do not tell where they have it from")
    loaded = _named(root, "its workers have it from there")
    return loaded or Origin(Kind.TEXT, why=f"{root[:100]!r} is neither a folder nor a hub id")


def at_workers(model: str, described: Described, why: str) -> Origin:
    """Return the origin for asking workers: equal models make equal tokens."""
    return Origin(Kind.WORKER, _root(model, described) or model, why)


def identity(model: str, described: Described) -> str:
    """Return the model's name in keys: equal for models that share blocks in the engine, else not.

    A base model may be served under many names. Engines name blocks by their tokens alone, so all
    these names share blocks, and what the model was loaded from identifies it. An adapter has
    blocks of its own, and engines know it by the name it is served under (an adapter loaded twice
    shares nothing). So that name counts, and also what it was loaded from, as names are reused for
    other adapters.
    """
    found = described.get(model, {})
    root, parent = _text(found, "root"), _text(found, "parent")
    if parent is not None:
        return f"{root or ''}\0{model}"
    return root or model


def is_adapter(model: str, described: Described) -> bool:
    """Whether the model is an adapter."""
    return _text(described.get(model, {}), "parent") is not None


def fingerprint(described: Described) -> Fingerprint:
    """Return the part of a description whose change requires a new check."""
    return {name: (_text(one, "root"), _text(one, "parent")) for name, one in described.items()}


def loaded(found: Fingerprint) -> Mapping[str, str | None]:
    """Return what its base models were loaded from, which determines their tokens."""
    return {name: root for name, (root, parent) in found.items() if parent is None}


def _named(name: str, why: str) -> Origin | None:
    if name.startswith("/"):
        return Origin(Kind.FOLDER, name, why)
    return Origin(Kind.HUB, name, why) if is_hub_id(name) else None


def _root(model: str, described: Described) -> str | None:
    """Return what the model, or an adapter's base model, was loaded from."""
    found = described.get(model, {})
    parent = _text(found, "parent")
    if parent is None:
        return _text(found, "root")
    if parent in described and parent != model:
        return _text(described[parent], "root")
    # vLLM repeats the base named by the adapter, which may be any of its names, or none.
    bases = {_text(one, "root") for one in described.values() if _text(one, "parent") is None}
    return bases.pop() if len(bases) == 1 else None


def _text(found: Mapping[str, Any], field: str) -> str | None:
    value = found.get(field)
    return value if isinstance(value, str) and value else None
