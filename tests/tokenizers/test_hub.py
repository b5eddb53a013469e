"""Model folders by hub id, from a cache on disk."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors

from router.rendering.folder import MAX_FILE_BYTES
from router.settings.tokenizer import is_hub_id
from router.tokenizers import sources as finding
from router.tokenizers.hub import NotFetched, snapshot
from tests.support import until
from tests.tokenizers import hub_cache
from tests.tokenizers.asking import ask, knows, states, tokenizer, until_known
from tests.tokenizers.conftest import MakeEngine, Start
from tests.tokenizers.engine import card
from tests.tokenizers.models import make_model

NAME = "some-org/some.model_1"


@pytest.mark.parametrize("text", ["a/b", NAME, "Org/Model-8B-v0.3", "_a/_b"])
def test_hub_ids(text: str) -> None:
    """Names that the hub could have."""
    assert is_hub_id(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", "a", "a/b/c", "/a", "a/", "../a", "a/..", "a/b--c", "a/b.git", "a b/c", "ä/b"),
        *("a/b\n", f"a/{'b' * 95}", "https://x/y", "-a/b", "a/.b", "a/b-", "a/b."),
    ],
)
def test_no_hub_ids(text: str) -> None:
    """Such names are never sent to the hub."""
    assert not is_hub_id(text)


def test_what_the_cache_holds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: Path
) -> None:
    """What the cache has is not requested from the hub."""
    hub_cache.use(monkeypatch, tmp_path / "cache")
    there = hub_cache.put(tmp_path / "cache", NAME, folder)
    assert snapshot(NAME) == snapshot(NAME, fresh=True) == there


def test_what_it_does_not_hold(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: Path
) -> None:
    """If the model or only its tokenizer is missing, it is an error when offline."""
    hub_cache.use(monkeypatch, tmp_path / "cache")
    (folder / "tokenizer.json").unlink()
    hub_cache.put(tmp_path / "cache", NAME, folder)
    for name in (NAME, "other/model"):
        with pytest.raises(NotFetched, match=f"^{name} is not in the hub's cache, and HF_HUB_OFF"):
            snapshot(name)


def told(*files: tuple[str, int]) -> Callable[..., Any]:
    """Return a stand-in for what the hub says of a repository's files and sizes."""
    siblings = [SimpleNamespace(rfilename=name, size=size) for name, size in files]
    return lambda _, files_metadata: SimpleNamespace(siblings=siblings if files_metadata else None)


def failing(error: Exception) -> Callable[..., str]:
    """Return a download that fails, with an empty cache."""

    def download(name: str, **options: Any) -> str:
        if options.get("local_files_only"):
            raise errors.LocalEntryNotFoundError("not here")
        raise error

    return download


def test_what_cannot_be_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The error gives the reason, on one line."""
    hub_cache.use(monkeypatch, tmp_path, offline=False)
    error = OSError("the cable is out\nand more")
    monkeypatch.setattr(huggingface_hub, "model_info", told())
    monkeypatch.setattr(huggingface_hub, "snapshot_download", failing(error))
    with pytest.raises(NotFetched) as caught:
        snapshot(NAME)
    said = f"{NAME} cannot be fetched from the hub: OSError: the cable is out"
    assert str(caught.value) == said


def test_a_download(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: Path) -> None:
    """Only files that matter are requested; a repository without a tokenizer is an error."""
    hub_cache.use(monkeypatch, tmp_path, offline=False)
    asked: list[dict[str, Any]] = []

    def download(name: str, **options: Any) -> str:
        asked.append({"name": name, **options})
        if options.get("local_files_only"):
            raise errors.LocalEntryNotFoundError("not here")
        return str(folder)

    small = [("tokenizer.json", MAX_FILE_BYTES), ("model.safetensors", MAX_FILE_BYTES + 1)]
    monkeypatch.setattr(huggingface_hub, "model_info", told(*small))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert snapshot(NAME) == folder
    assert [one["name"] for one in asked] == [NAME, NAME]
    assert all("tokenizer.json" in one["allow_patterns"] for one in asked)
    assert not any(pattern.endswith(".safetensors") for pattern in asked[1]["allow_patterns"])
    asked.clear()
    assert snapshot(NAME, fresh=True) == folder
    assert not any("local_files_only" in one for one in asked)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(NotFetched, match=r"has no tokenizer on the hub$"):
        snapshot(NAME)


def test_what_is_too_large(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is not downloaded."""
    hub_cache.use(monkeypatch, tmp_path, offline=False)
    monkeypatch.setattr(huggingface_hub, "model_info", told(("tokenizer.json", MAX_FILE_BYTES + 1)))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", failing(OSError("fetched")))
    with pytest.raises(NotFetched, match=f"^tokenizer.json of {NAME} is over 256 MiB$"):
        snapshot(NAME)


def test_a_worker_that_has_it_from_the_hub(
    engine: MakeEngine,
    start: Start,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`auto` uses the hub id that a worker reports, and searches again while it is missing."""
    hub_cache.use(monkeypatch, tmp_path / "cache")
    monkeypatch.setattr(finding, "RETRY_INTERVAL_S", 0.02)
    monkeypatch.setattr(finding, "MAX_RETRY_INTERVAL_S", 0.05)
    worker = engine(folder, [card("m", NAME)])
    router = start(worker)
    until(lambda: "is not in the hub's cache" in tokenizer(router).get("reason", ""))
    assert ask(router) == 200
    hub_cache.put(tmp_path / "cache", NAME, folder)
    until_known(router)
    found = tokenizer(router)
    assert (found["source"], found["name"], found["keyed"]) == ("hub", NAME, "tokens")
    assert states(router) == {worker.name: "agrees"}
    assert router.door.fleet.pools[0].prompts.known["m"].identity == NAME


def test_a_hub_id_of_the_settings(
    engine: MakeEngine,
    start: Start,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is used for a worker that does not report its model's source."""
    hub_cache.use(monkeypatch, tmp_path / "cache")
    hub_cache.put(tmp_path / "cache", NAME, folder)
    router = start(engine(folder, [card("m")]), tokenizer=NAME)
    until_known(router)
    assert states(router).popitem()[1] == "agrees"


def test_an_old_one_is_fetched_again(
    engine: MakeEngine,
    start: Start,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If a worker tokenizes differently from the cached version, it may have a newer one."""
    newer = make_model(tmp_path / "newer", "{{ messages[0].content }}")
    hub_cache.use(monkeypatch, tmp_path, offline=False)
    cached: list[bool] = []

    def download(name: str, **options: Any) -> str:
        cached.append(bool(options.get("local_files_only")))
        return str(folder if cached[-1] else newer)

    monkeypatch.setattr(huggingface_hub, "model_info", told())
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    worker = engine(newer, [card("m", NAME)])
    router = start(worker)
    until_known(router)
    assert states(router) == {worker.name: "agrees"}
    assert cached == [True, False]


def test_a_download_that_never_ends(
    engine: MakeEngine,
    start: Start,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is given up, delays no other search, and does not keep the router from stopping."""
    hub_cache.use(monkeypatch, tmp_path, offline=False)
    monkeypatch.setattr(finding, "SEARCH_TIMEOUT_S", 2.0)
    monkeypatch.setattr(finding, "MAX_CONCURRENT_SEARCHES", 1)
    stuck = tmp_path / "stuck"
    os.mkfifo(stuck)

    def download(name: str, **options: Any) -> str:
        if options.get("local_files_only"):
            raise errors.LocalEntryNotFoundError("not here")
        return stuck.read_text()  # blocks until something is written

    monkeypatch.setattr(huggingface_hub, "model_info", told())
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    worker = engine(folder, [card("m", NAME), card("n", folder)])
    router = start(worker)
    until(lambda: "was not there after 2s" in tokenizer(router).get("reason", ""))
    until_known(router, "n")
    assert not knows(router)
    router.stop()
    with stuck.open("w") as end:
        end.write("x")
