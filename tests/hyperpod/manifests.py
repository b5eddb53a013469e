"""Manifests as users of HyperPod write them, and what they become."""

import json
from pathlib import Path
from typing import Any, cast

from router.hyperpod.fields import GROUP, KIND, Note
from router.hyperpod.loader import Loaded, take
from router.hyperpod.manifest import Mapped, translate

WORKERS = "http://llama-{replica}.llama:8000"
OURS = "warmroute.io/settings"


def manifest(workers: str | None = WORKERS, own: str | None = None, **spec: Any) -> dict[str, Any]:
    """Return a minimal manifest, with further fields; `worker` is merged into its own.

    `own`: settings of our own in it.
    """
    worker = {
        "image": "vllm/vllm-openai:v0.32.0",
        "modelInvocationPort": {"containerPort": 8000, "name": "http"},
        "modelVolumeMount": {"name": "model-weights"},
        "resources": {},
        **spec.pop("worker", {}),
    }
    annotations = {"warmroute.io/workers": workers} if workers else {}
    annotations |= {OURS: own} if own is not None else {}
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": KIND,
        "metadata": {"name": "llama", "annotations": annotations},
        "spec": {
            "modelName": "Llama-3.1-8B-Instruct",
            "instanceType": "ml.g5.8xlarge",
            "modelSourceConfig": {"modelSourceType": "s3"},
            "worker": worker,
            **spec,
        },
    }


def variables(**values: str) -> dict[str, Any]:
    """Return a worker with these environment variables."""
    return {"environmentVariables": [{"name": k, "value": v} for k, v in values.items()]}


def routed(strategy: str) -> dict[str, Any]:
    """Return a routing section with this strategy."""
    return {"enabled": True, "routingStrategy": strategy}


def mapped(option: str | None = None, **spec: Any) -> Mapped:
    """Return what a manifest becomes, with all notes; it must have no mistakes."""
    result = translate(json.dumps(manifest(**spec)), "e.yaml", option)
    assert result.problems == []
    return result


def data(**spec: Any) -> dict[str, Any]:
    """Return the settings that a manifest becomes."""
    return cast("dict[str, Any]", mapped(**spec).document.data)


def wrong(**spec: Any) -> list[str]:
    """Return the mistakes in a manifest: field and message."""
    result = translate(json.dumps(manifest(**spec)), "e.yaml", None)
    return [f"{problem.field}: {problem.message}" for problem in result.problems]


def taken(folder: Path, **spec: Any) -> Loaded:
    """Return the validated settings that a manifest becomes."""
    return take(written(folder, json.dumps(manifest(**spec))))


def note(result: Mapped | Loaded, field: str) -> Note:
    """Return the note on one field."""
    return next(note for note in result.notes if note.field == field)


def written(folder: Path, text: str) -> Path:
    """Write the text to a file and return its path."""
    path = folder / "endpoint.yaml"
    path.write_text(text)
    return path
