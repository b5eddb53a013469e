"""Where a manifest's workers are."""

import json
from pathlib import Path

import pytest

from router.hyperpod.environment import addresses
from router.hyperpod.fields import FieldOutcome
from router.hyperpod.loader import take
from router.settings.errors import SettingsError
from tests.hyperpod.manifests import data, manifest, mapped, note, written, wrong


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
    result = mapped(replicas=2)
    workers = ["http://llama-0.llama:8000", "http://llama-1.llama:8000"]
    assert data(replicas=2)["workers"] == workers
    assert note(result, "spec.replicas").fate is FieldOutcome.MAPPED
    result = mapped(workers="a b", replicas=7)
    assert note(result, "spec.replicas").fate is FieldOutcome.LOST


def test_the_command_line_takes_the_place_of_the_annotation() -> None:
    """`--workers` takes precedence over the file."""
    result = mapped("http://x:1")
    remark = note(result, 'metadata.annotations."warmroute.io/workers"')
    assert remark.became == "--workers takes its place: 1 worker"


def test_an_empty_list_is_none() -> None:
    """Such as `--workers "$A"` where that is not set: the annotation counts."""
    assert mapped("").document == mapped(None).document


@pytest.mark.parametrize("by", ["--workers", "WARMROUTE_WORKERS"])
@pytest.mark.parametrize(
    ("option", "text", "words"),
    [
        *((option, json.dumps(manifest()), "names no worker") for option in (" ", ", ,", ",\r\n")),
        (" ", json.dumps(manifest(None)), "names no worker"),
        ("http://a:1/v1", json.dumps(manifest()), '"http://a:1/v1" has a path'),
    ],
)
def test_a_wrong_list_is_the_only_mistake(
    request: pytest.FixtureRequest, by: str, option: str, text: str, words: str
) -> None:
    """It is located at what gave it, such as `--workers "$A,$B"` where neither is set: the workers
    in the file would be a surprise."""
    if by == "WARMROUTE_WORKERS":
        request.getfixturevalue("monkeypatch").setenv(by, option)
    with pytest.raises(SettingsError) as caught:
        take(written(request.getfixturevalue("tmp_path"), text), option)
    (problem,) = caught.value.problems
    assert str(problem).startswith(f"{by}: {words}")


def test_a_settings_file_has_its_own_workers(tmp_path: Path) -> None:
    """The message names what gave others."""
    with pytest.raises(SettingsError, match="holds its own workers: --workers is for an Infer"):
        take(written(tmp_path, "workers: [http://a:1]"), "http://b:1")


@pytest.mark.parametrize("workers", [None, " ", ", ,"])
def test_without_addresses_it_says_how_to_give_them(workers: str | None) -> None:
    """The error names all three ways."""
    (message,) = wrong(workers=workers)
    for remedy in ("--workers", "WARMROUTE_WORKERS", "warmroute.io/workers"):
        assert remedy in message


def test_a_wrong_address_is_named() -> None:
    """The error is located at the annotation."""
    (message,) = wrong(workers="http://a:1/v1")
    assert message.startswith(
        'metadata.annotations."warmroute.io/workers": "http://a:1/v1" has a path'
    )
