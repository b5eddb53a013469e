"""What a worker's list of models tells beside their names. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Models = Mapping[str, Mapping[str, Any]]


def bases(models: Models) -> tuple[str, ...]:
    """Return the names of the model that answers a request which names none, the main one first.

    In vLLM that is the base model, whatever adapters are loaded; its further names
    (`--served-model-name a b`) have the same `root`, and adapters a `parent`
    (vllm/entrypoints/openai/models/serving.py). Empty if the list has several models.
    """
    found = [name for name, one in models.items() if not one.get("parent")] or list(models)
    if len(found) > 1:
        roots = [models[name].get("root") for name in found]
        if not isinstance(roots[0], str) or any(root != roots[0] for root in roots):
            return ()
    return tuple(found)


def common(workers: Iterable[tuple[str, ...]]) -> Sequence[str] | None:
    """Return the names that the `bases` of all workers have in common; None without any worker.

    Only a name that all have tells that they have the same model: a `root` is a path on a disk.
    """
    names: Sequence[str] | None = None
    for one in workers:
        names = one if names is None else [name for name in names if name in one]
        if not names:
            break
    return names


def longest(models: Models, told: Mapping[str, Any]) -> int | None:
    """Return the most tokens, prompt and answer, that one of the models takes; None: not told.

    An adapter takes as many as the model that it is for: engines tell only the limit of that one.
    """
    limit = told.get("max_model_len")
    if limit is None and isinstance(parent := told.get("parent"), str):
        limit = models.get(parent, {}).get("max_model_len")
    return limit if isinstance(limit, int) and limit > 0 else None
