"""Where a manifest's workers are."""

import json
from pathlib import Path

import pytest

from router.hyperpod.environment import addresses
from router.hyperpod.fields import Fate
from router.hyperpod.loader import take
from router.settings.errors import SettingsError
from tests.hyperpod.manifests import manifest, mapped, note, written, wrong


@pytest.mark.parametrize(
    ("text", "urls"),
    [
        ("http://a:1", ["http://a:1"]),
        ("a", ["http://a:8000"]),
        ("a:1, b:2\n c", ["http://a:1", "http://b:2", "http://c:8000"]),
        ("https://a/", ["https://a:8000"]),
        ("w-{replica}.w", ["http://w-0.w:8000", "http://w-1.w:8000"]),
        ("http://[::1]", ["http://[::1]:8000"]),
        ("a\r\nb\r", ["http://a:8000", "http://b:8000"]),
    ],
)
def test_a_list_of_addresses(text: str, urls: list[str]) -> None:
    """Scheme and port may be left out; replicas are numbered from 0."""
    assert list(addresses(text, 2, 8000)) == urls


def test_replicas_are_counted() -> None:
    """More replicas than addresses are reported."""
    found = mapped(replicas=2)
    assert found.data["workers"] == ["http://llama-0.llama:8000", "http://llama-1.llama:8000"]
    assert note(found, "spec.replicas").fate is Fate.MAPPED
    found = mapped(workers="a b", replicas=7)
    assert note(found, "spec.replicas").fate is Fate.LOST


def test_what_is_told_takes_the_place_of_the_annotation() -> None:
    """`--workers` takes precedence over the file."""
    found = mapped(told="http://x:1")
    assert found.data["workers"] == ["http://x:1"]
    said = note(found, 'metadata.annotations."warmroute.io/workers"')
    assert said.became == "--workers takes its place: 1 worker"


def test_an_empty_list_is_none() -> None:
    """Such as `--workers "$A"` where that is not set: the annotation counts."""
    assert mapped(told="") == mapped(told=None)


BY = pytest.mark.parametrize("by", ["--workers", "WARMROUTE_WORKERS"])


def refused(folder: Path, monkeypatch: pytest.MonkeyPatch, by: str, told: str, text: str) -> str:
    """Return the mistakes in a file whose workers are told by the option or the variable."""
    if by == "WARMROUTE_WORKERS":
        monkeypatch.setenv(by, told)
    with pytest.raises(SettingsError) as caught:
        take(written(folder, text), told)
    return str(caught.value).replace(str(folder), "")


@BY
@pytest.mark.parametrize("told", [" ", ", ,\n", ",\r\n"])
@pytest.mark.parametrize("workers", ["http://a:1", None])
def test_a_list_that_names_nobody_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str, told: str, workers: str | None
) -> None:
    """Such as `--workers "$A,$B"` where neither is set: other workers would be a surprise."""
    text = json.dumps(manifest(workers))
    said = refused(tmp_path, monkeypatch, by, told, text)
    assert said == f"{by}: names no worker: give URLs, separated by commas"


@BY
def test_a_wrong_address_that_is_told_is_the_only_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """It is located at what told it, and nothing is said of the workers in the file."""
    text = json.dumps(manifest())
    said = refused(tmp_path, monkeypatch, by, "http://a:1/v1", text)
    assert said.startswith(f'{by}: "http://a:1/v1" has a path')
    assert "\n" not in said


@BY
def test_a_settings_file_has_its_own_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """The message names what told of others."""
    said = refused(tmp_path, monkeypatch, by, "http://x:1", "workers: [http://a:1]")
    assert said.endswith(f"holds its own workers: {by} is for an InferenceEndpointConfig")


@pytest.mark.parametrize("workers", [None, " ", ", ,"])
def test_without_addresses_it_says_how_to_give_them(workers: str | None) -> None:
    """The error names all three ways."""
    (said,) = wrong(workers=workers)
    for way in ("--workers", "WARMROUTE_WORKERS", "warmroute.io/workers"):
        assert way in said


def test_a_wrong_address_is_named() -> None:
    """The error is located at the annotation."""
    (said,) = wrong(workers="http://a:1/v1")
    assert said.startswith(
        'metadata.annotations."warmroute.io/workers": "http://a:1/v1" has a path'
    )
