"""Kubernetes files: several documents, lists, and mistakes in them."""

import json
from pathlib import Path

import pytest

from router.hyperpod.fields import GROUP, find, is_manifest
from router.hyperpod.loader import take
from router.settings.errors import SettingsError
from tests.hyperpod.manifests import manifest, taken, written

ENDPOINT = json.dumps(manifest())
SERVICE = "apiVersion: v1\nkind: Service\nspec: !odd {a: 1, a: 2}\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (ENDPOINT, True),
        ("apiVersion: v1", True),
        ("- apiVersion: v1", True),
        ("workers: [http://a]\n# apiVersion: v1", False),
        ("workers: [http://a]", False),
        ("", False),
    ],
)
def test_a_manifest_is_told_from_settings(text: str, expected: bool) -> None:
    """It is recognised by a key that settings do not have."""
    assert is_manifest(text) is expected


def test_other_resources_are_passed_over() -> None:
    """A file for kubectl can be used as it is, whatever else it contains."""
    endpoint, others = find(f"{SERVICE}---\n---\n{ENDPOINT}\n---\n{SERVICE}", "e.yaml")
    assert endpoint.root == ()
    assert others == ['"Service"', '"Service"']


def test_a_list_of_kubernetes() -> None:
    """`kubectl get -o yaml` prints lists; mistakes are located in them."""
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": [{"kind": "Pod"}, manifest()]})
    endpoint, others = find(text, "e.yaml")
    assert (endpoint.root, others) == (("items", 1), ['"Pod"'])
    assert endpoint.problem(("spec", "worker"), "").field == "items[1].spec.worker"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SERVICE, 'e.yaml: holds no InferenceEndpointConfig; there is "Service"'),
        (f"{ENDPOINT}\n---\n{ENDPOINT}", "e.yaml:3: kind: a second InferenceEndpointConfig: a"),
        (ENDPOINT.replace(GROUP, "example.org"), "apiVersion: must be inference.sagemaker.aws"),
        (ENDPOINT.replace("/v1", "/v9"), "or inference.sagemaker.aws.amazon.com/v1alpha1"),
        (f"apiVersion: {GROUP}/v1\nkind: InferenceEndpointConfig", "spec: must be a mapping"),
        (
            f"apiVersion: {GROUP}/v1\nkind: InferenceEndpointConfig\nspec: {{a: !odd 1}}",
            "e.yaml:3: spec.a: a tag (!) is not allowed",
        ),
        (f"apiVersion: {GROUP}/v1\nspec: 'a", "e.yaml:2: a quoted text is never closed"),
    ],
)
def test_what_is_no_endpoint_is_refused(text: str, words: str) -> None:
    """The error names file, line and field."""
    with pytest.raises(SettingsError) as error:
        find(text, "e.yaml")
    assert words in str(error.value)


def test_a_key_without_a_value_is_not_there(tmp_path: Path) -> None:
    """As in Kubernetes; in our own settings files it is a mistake."""
    text = (
        f"apiVersion: {GROUP}/v1\nkind: InferenceEndpointConfig\n"
        "metadata:\n  annotations: {warmroute.io/workers: 'a:1'}\n"
        "spec:\n  replicas:\n  worker:\n    requestLimits:\n"
    )
    assert take(written(tmp_path, text)).settings.limits.queue == 1000


def test_lines_are_those_of_the_manifest(tmp_path: Path) -> None:
    """For a field, and for a setting within the annotation."""
    text = (
        f"apiVersion: v1\nkind: Pod\n---\napiVersion: {GROUP}/v1\nkind: InferenceEndpointConfig\n"
        "metadata:\n  annotations:\n    warmroute.io/workers: a:1\n    warmroute.io/settings: |\n"
        "      limits:\n        imagess: 3\n"
        "spec:\n  worker:\n    requestLimits: {maxConcurrentRequests: -1}\n"
    )
    path = written(tmp_path, text)
    with pytest.raises(SettingsError) as error:
        take(path)
    assert str(error.value).splitlines() == [
        f'{path}:11: limits.imagess: unknown key; did you mean "images"?',
        f"{path}:14: spec.worker.requestLimits.maxConcurrentRequests: must be a whole number from"
        " 0 to 2147483647",
    ]


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ("limits: 'a", "a quoted text is never closed"),
        ("limits:", "limits: has no value"),
        ("auth: {keys: [sk-literal]}", "a secret is never written here"),
        ("workers: [http://a/v1]", "workers[0]:"),
    ],
)
def test_mistakes_in_settings_of_our_own(tmp_path: Path, own: str, words: str) -> None:
    """They are reported as in our own files, and no other error follows from them."""
    with pytest.raises(SettingsError) as error:
        taken(tmp_path, own=own, workers="http://b:1")
    (line,) = str(error.value).splitlines()
    assert words in line
    assert "sk-literal" not in line


def test_without_workers_it_is_told_once(tmp_path: Path) -> None:
    """Only once, together with the manifest's other mistakes."""
    with pytest.raises(SettingsError) as error:
        taken(tmp_path, workers=None, replicas=-1)
    lines = str(error.value).splitlines()
    assert len(lines) == 2
    assert "does not say where the workers are" in lines[0]
    assert "spec.replicas: must be a whole number from 0" in lines[1]
