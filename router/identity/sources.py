"""Where the tokenizer of a model is to be looked for, as settings and workers tell. Pure."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from router.identity.hub import is_hub_id

Described = Mapping[str, Mapping[str, Any]]
"""A worker's models by name, as its `/v1/models` describes each."""

Fingerprint = Mapping[str, tuple[str | None, str | None]]
"""As much of it as counts here: of each model what it was loaded from, and its base."""

_SAID = "the settings say so"


class Kind(StrEnum):
    """What kind of source it is."""

    FOLDER = "folder"
    HUB = "hub"
    WORKER = "worker"
    TEXT = "text"
    """There is none: prompts are keyed by their text."""


class Origin(NamedTuple):
    """One source."""

    kind: Kind
    name: str = ""
    """The folder's path, or the hub id; of workers, what they have loaded."""
    why: str = ""
    """Why this one."""
    told: bool = False
    """The settings name it: that it is not there is a mistake."""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".strip()


def origin(source: str, model: str, described: Described) -> Origin:
    """Return where to look for the tokenizer of `model`, which a worker has so `described`.

    `source` is that of the settings. With `auto` it is where the engine has its weights from: what
    it loaded has its tokenizer beside them. An adapter has its base model's.
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
    """Return that workers are to be asked: equal models make equal tokens."""
    return Origin(Kind.WORKER, _root(model, described) or model, why)


def identity(model: str, described: Described) -> str:
    """Return what stands for the model in keys: equal where engines share blocks, else not.

    A base model may be served by many names. Engines name blocks by their tokens alone, so all its
    names share them: what it was loaded from stands for it. An adapter's blocks are its own, and
    engines know it by the name it is served by (one adapter loaded twice shares nothing): so that
    name counts, and also what it was loaded from, as names are given again to other adapters.
    """
    found = described.get(model, {})
    root, parent = _text(found, "root"), _text(found, "parent")
    if parent is not None:
        return f"{root or ''}\0{model}"
    return root or model


def is_adapter(model: str, described: Described) -> bool:
    """Whether the model is an adapter of another one."""
    return _text(described.get(model, {}), "parent") is not None


def fingerprint(described: Described) -> Fingerprint:
    """Return what has to be looked at again when it is another one."""
    return {name: (_text(one, "root"), _text(one, "parent")) for name, one in described.items()}


def loaded(found: Fingerprint) -> Mapping[str, str | None]:
    """Return what its models that are no adapters were loaded from: that tells their tokens."""
    return {name: root for name, (root, parent) in found.items() if parent is None}


def _named(name: str, why: str) -> Origin | None:
    if name.startswith("/"):
        return Origin(Kind.FOLDER, name, why)
    return Origin(Kind.HUB, name, why) if is_hub_id(name) else None


def _root(model: str, described: Described) -> str | None:
    """What its base model was loaded from."""
    found = described.get(model, {})
    parent = _text(found, "parent")
    if parent is None:
        return _text(found, "root")
    if parent in described and parent != model:
        return _text(described[parent], "root")
    # vLLM repeats what the adapter says its base is, which may be any name of that, or none.
    bases = {_text(one, "root") for one in described.values() if _text(one, "parent") is None}
    return bases.pop() if len(bases) == 1 else None


def _text(found: Mapping[str, Any], field: str) -> str | None:
    value = found.get(field)
    return value if isinstance(value, str) and value else None
