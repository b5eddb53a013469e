"""Manifests as users of HyperPod write them, and what they become."""

import json
from pathlib import Path
from typing import Any

from router.hyperpod.fields import GROUP, KIND, Able, Note
from router.hyperpod.manifest import Mapped, Paths, translate

WORKERS = "http://llama-{replica}.llama:8000"
#: A router with every feature.
ABLE = Able(
    {"prefixaware", "kvaware", "session", "roundrobin", "leastload"},
    {"session", "sagemaker"},
    {"url", "api_key", "stateful"},
    {"VLLM_API_KEY"},
)
PATHS = Paths(frozenset(("/v1/chat/completions", "/invocations")), frozenset(("/health",)))
NOBODY = Able({"prefixaware", "roundrobin", "leastload"}, (), {"url", "api_key"}, ())


def manifest(workers: str | None = WORKERS, **spec: Any) -> dict[str, Any]:
    """Return a minimal manifest, with further fields; `worker` is merged into its own."""
    worker = {
        "image": "vllm/vllm-openai:v0.32.0",
        "modelInvocationPort": {"containerPort": 8000, "name": "http"},
        "modelVolumeMount": {"name": "model-weights"},
        "resources": {},
        **spec.pop("worker", {}),
    }
    annotations = {"warmroute.io/workers": workers} if workers else {}
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


def mapped(able: Able = ABLE, told: str | None = None, **spec: Any) -> Mapped:
    """Return what a manifest becomes, with all notes; it must have no mistakes."""
    found = translate(json.dumps(manifest(**spec)), "e.yaml", told, able, PATHS)
    assert found.problems == []
    return found


def wrong(**spec: Any) -> list[str]:
    """Return the mistakes in a manifest: field and message."""
    found = translate(json.dumps(manifest(**spec)), "e.yaml", None, ABLE, PATHS)
    return [f"{one.field}: {one.message}" for one in found.problems]


def note(found: Mapped, field: str) -> Note:
    """Return the note on one field."""
    return next(one for one in found.notes if one.field == field)


def written(folder: Path, text: str) -> Path:
    """Write the text to a file and return its path."""
    path = folder / "endpoint.yaml"
    path.write_text(text)
    return path
