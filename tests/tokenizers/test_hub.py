"""Model folders by hub id, from a cache on disk."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants, errors

from router.rendering.folder import MAX_FILE_BYTES
from router.settings.tokenizer import is_hub_id
from router.tokenizers.sources import NotFetched, snapshot
from tests.support import until
from tests.tokenizers.asking import ask, knows, states, tokenizer, until_known
from tests.tokenizers.conftest import MakeEngine, Start
from tests.tokenizers.engine import card
from tests.tokenizers.models import make_model

NAME = "some-org/some.model_1"
BAD_NAMES = (
    *("", "a", "a/b/c", "/a", "a/", "../a", "a/..", "a/b--c", "a/b.git", "a b/c", "ä/b"),
    *("a/b\n", f"a/{'b' * 95}", "https://x/y", "-a/b", "a/.b", "a/b-", "a/b."),
)


def use_cache(monkeypatch: pytest.MonkeyPatch, cache: Path, *, offline: bool = True) -> None:
    """Use this cache; without `offline`, the network is tried too."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)


def put(cache: Path, name: str, folder: Path) -> Path:
    """Put a folder into the cache under a hub id, as the hub's library lays it out."""
    repository, commit = cache / f"models--{name.replace('/', '--')}", "0123456789abcdef" * 2
    shutil.copytree(folder, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    return repository / "snapshots" / commit


def test_hub_ids() -> None:
    """Names that the hub could not have are never sent there."""
    assert all(map(is_hub_id, ("a/b", NAME, "Org/Model-8B-v0.3", "_a/_b")))
    assert not list(filter(is_hub_id, BAD_NAMES))


def test_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, folder: Path) -> None:
    """What it has is not requested from the hub; if the model or only its tokenizer is missing, it
    is an error when offline."""
    use_cache(monkeypatch, tmp_path / "cache")
    there = put(tmp_path / "cache", NAME, folder)
    assert snapshot(NAME) == snapshot(NAME, fresh=True) == there
    (there / "tokenizer.json").unlink()
    for name in (NAME, "other/model"):
        with pytest.raises(NotFetched, match=f"^{name} is not in the hub's cache, and HF_HUB_OFF"):
            snapshot(name)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., list[bool]]:
    """Stand in for the hub: its files and sizes, what the cache has, and a download.

    The list that is returned gets for each try whether it was of the cache alone.
    """

    def set_up(
        download: Callable[[], object], *files: tuple[str, int], cached: Path | None = None
    ) -> list[bool]:
        use_cache(monkeypatch, tmp_path, offline=False)
        tries: list[bool] = []
        siblings = [SimpleNamespace(rfilename=name, size=size) for name, size in files]

        def snapshot_download(_: str, *, allow_patterns: list[str], **options: Any) -> str:
            tries.append(bool(options.get("local_files_only")))
            assert "tokenizer.json" in allow_patterns
            assert not any(pattern.endswith(".safetensors") for pattern in allow_patterns)
            if tries[-1] and cached is None:
                raise errors.LocalEntryNotFoundError("not here")
            return str(cached if tries[-1] else download())

        def model_info(_: str, *, files_metadata: bool) -> SimpleNamespace:
            return SimpleNamespace(siblings=siblings if files_metadata else None)

        monkeypatch.setattr(huggingface_hub, "model_info", model_info)
        monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
        return tries

    return set_up


def failing(error: Exception) -> Callable[[], object]:
    """Return a download that fails."""

    def download() -> object:
        raise error

    return download


def refused(kind: type[errors.RepositoryNotFoundError]) -> Exception:
    """Return an error as the hub's library raises it."""
    return kind("refused", response=SimpleNamespace(headers={}, request=None))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError("the cable is out\nand more"), "cannot be fetched from the hub: OSError: the ca"),
        (OSError(), "cannot be fetched from the hub: OSError"),
        (refused(errors.GatedRepoError), "is gated on the hub: HF_TOKEN has to open it"),
        (refused(errors.RepositoryNotFoundError), "is not on the hub, or HF_TOKEN does not open"),
    ],
)
def test_what_cannot_be_fetched(
    hub: Callable[..., list[bool]], error: Exception, said: str
) -> None:
    """The error gives the reason, on one line."""
    hub(failing(error))
    with pytest.raises(NotFetched) as caught:
        snapshot(NAME)
    assert str(caught.value).startswith(f"{NAME} {said}")
    assert "\n" not in str(caught.value)


def test_a_download(hub: Callable[..., list[bool]], folder: Path) -> None:
    """Only files that matter are requested, and what is too large is not; a repository without a
    tokenizer is an error."""
    small = [("tokenizer.json", MAX_FILE_BYTES), ("model.safetensors", MAX_FILE_BYTES + 1)]
    tries = hub(lambda: folder, *small)
    assert snapshot(NAME) == snapshot(NAME, fresh=True) == folder
    assert tries == [True, False, False]
    (folder / "tokenizer.json").unlink()
    with pytest.raises(NotFetched, match=r"has no tokenizer on the hub$"):
        snapshot(NAME)
    hub(failing(OSError("fetched")), ("tokenizer.json", MAX_FILE_BYTES + 1))
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
    use_cache(monkeypatch, tmp_path / "cache")
    worker = engine(folder, [card("m", NAME)])
    router = start(worker)
    until(lambda: "is not in the hub's cache" in tokenizer(router).get("reason", ""))
    assert ask(router) == 200
    put(tmp_path / "cache", NAME, folder)
    until_known(router)
    found = tokenizer(router)
    assert (found["source"], found["name"], found["keyed"]) == ("hub", NAME, "tokens")
    assert states(router) == {worker.name: "agrees"}
    assert router.door.fleet.pools[0].prompts.known["m"].identity == NAME


def test_an_old_one_is_fetched_again(
    engine: MakeEngine,
    start: Start,
    folder: Path,
    tmp_path: Path,
    hub: Callable[..., list[bool]],
) -> None:
    """If a worker tokenizes differently from the cached version, it may have a newer one."""
    newer = make_model(tmp_path / "newer", "{{ messages[0].content }}")
    tries = hub(lambda: newer, cached=folder)
    worker = engine(newer, [card("m", NAME)])
    router = start(worker)
    until_known(router)
    assert states(router) == {worker.name: "agrees"}
    assert tries == [True, False]


def test_a_download_that_never_ends(
    engine: MakeEngine,
    start: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    hub: Callable[..., list[bool]],
) -> None:
    """It is given up, and does not keep the router from stopping."""
    monkeypatch.setattr("router.tokenizers.sources.SEARCH_TIMEOUT_S", 0.5)
    stuck = tmp_path / "stuck"
    os.mkfifo(stuck)
    hub(stuck.read_text)  # blocks until something is written
    router = start(engine(None, [card("m", NAME)]))
    until(lambda: "was not there after 0.5s" in tokenizer(router).get("reason", ""))
    assert ask(router) == 200
    assert not knows(router)
    router.stop()
    until(lambda: _written(stuck))


def _written(pipe: Path) -> bool:
    """Let every thread that reads the pipe end; return true once there is none."""
    try:
        end = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return True
    os.close(end)
    return False
