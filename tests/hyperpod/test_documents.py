"""Kubernetes files: several documents, lists, and mistakes in them."""

import json
from pathlib import Path

import pytest

from router.hyperpod.fields import GROUP, find, is_manifest
from router.hyperpod.loader import take
from router.settings.errors import SettingsError
from tests.hyperpod.manifests import manifest, written

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
    found, others = find(f"{SERVICE}---\n---\n{ENDPOINT}\n---\n{SERVICE}", "e.yaml")
    assert found.root == ()
    assert others == ['"Service"', '"Service"']


def test_a_list_of_kubernetes() -> None:
    """`kubectl get -o yaml` prints lists; mistakes are located in them."""
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": [{"kind": "Pod"}, manifest()]})
    found, others = find(text, "e.yaml")
    assert (found.root, others) == (("items", 1), ['"Pod"'])
    assert found.problem(("spec", "worker"), "").field == "items[1].spec.worker"


@pytest.mark.parametrize(
    ("text", "said"),
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
def test_what_is_no_endpoint_is_refused(text: str, said: str) -> None:
    """The error names file, line and field."""
    with pytest.raises(SettingsError) as error:
        find(text, "e.yaml")
    assert said in str(error.value)


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
    ("own", "said"),
    [
        ("limits: 'a", "a quoted text is never closed"),
        ("limits:", "limits: has no value"),
        ("auth: {keys: [sk-literal]}", "a secret is never written here"),
        ("workers: [http://a/v1]", "workers[0]:"),
    ],
)
def test_mistakes_in_settings_of_our_own(tmp_path: Path, own: str, said: str) -> None:
    """They are reported as in our own files, and no other error follows from them."""
    data = manifest(workers=None)
    data["metadata"]["annotations"] = {
        "warmroute.io/settings": own,
        "warmroute.io/workers": "http://b:1",
    }
    with pytest.raises(SettingsError) as error:
        take(written(tmp_path, json.dumps(data)))
    (line,) = str(error.value).splitlines()
    assert said in line
    assert "sk-literal" not in line


def test_settings_of_our_own_come_last(tmp_path: Path) -> None:
    """They override what the manifest's fields became, and leave the rest."""
    data = manifest(worker={"requestLimits": {"maxConcurrentRequests": 10}})
    data["metadata"]["annotations"]["warmroute.io/settings"] = (
        "listen: 0.0.0.0:8080\nauth: none\nlimits: {in_flight: 3}\n"
    )
    settings, _ = take(written(tmp_path, json.dumps(data)))
    assert (settings.limits.in_flight, settings.limits.queue) == (3, 0)
    assert str(settings.listen) == "0.0.0.0:8080"


def test_workers_of_our_own_words(tmp_path: Path) -> None:
    """The annotation may have pools too, which manifests do not."""
    data = manifest(workers=None)
    pools = "pools: [{name: a, workers: ['http://a:1']}]"
    data["metadata"]["annotations"] = {"warmroute.io/settings": pools}
    settings, _ = take(written(tmp_path, json.dumps(data)))
    assert settings.pools[0].workers[0].url == "http://a:1"


def test_what_is_told_of_workers_comes_first(tmp_path: Path) -> None:
    """`--workers` also replaces those of the settings in the manifest; other settings stay."""
    data = manifest(workers=None)
    own = "pools: [{name: a, workers: ['http://a:1']}]\nlogs: {level: debug}"
    data["metadata"]["annotations"] = {"warmroute.io/settings": own}
    settings, _ = take(written(tmp_path, json.dumps(data)), "http://b:1")
    assert [worker.url for worker in settings.workers] == ["http://b:1"]
    assert (settings.pools, settings.logs.level) == ((), "debug")


def test_without_workers_it_is_said_once(tmp_path: Path) -> None:
    """Only once, together with the manifest's other mistakes."""
    with pytest.raises(SettingsError) as error:
        take(written(tmp_path, json.dumps(manifest(workers=None, replicas=-1))))
    lines = str(error.value).splitlines()
    assert len(lines) == 2
    assert "does not say where the workers are" in lines[0]
    assert "spec.replicas: must be a whole number from 0" in lines[1]


def test_workers_are_for_manifests(tmp_path: Path) -> None:
    """Our own settings files have their own workers."""
    with pytest.raises(SettingsError, match="holds its own workers: --workers is for an Infer"):
        take(written(tmp_path, "workers: [http://a:1]"), "http://b:1")
