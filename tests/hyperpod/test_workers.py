"""Where a manifest's workers are."""

import pytest

from router.hyperpod.notes import Fate
from router.hyperpod.workers import addresses
from tests.hyperpod.manifests import mapped, note, wrong


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
    assert "--workers" in note(found, 'metadata.annotations."warmroute.io/workers"').became


@pytest.mark.parametrize("told", ["", " ", ", ,\n", ",\r\n"])
def test_a_list_that_names_nobody_is_none(told: str) -> None:
    """Such as `--workers "$A,$B"` where neither is set: the annotation counts."""
    assert mapped(told=told) == mapped(told=None)


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
