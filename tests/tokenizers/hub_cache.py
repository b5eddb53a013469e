"""A Hugging Face cache as its library lays it out, without a network."""

import shutil
from pathlib import Path

import pytest
from huggingface_hub import constants

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def use(monkeypatch: pytest.MonkeyPatch, cache: Path, *, offline: bool = True) -> None:
    """Use this cache; without `offline`, the network is tried too."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)


def put(cache: Path, name: str, folder: Path) -> Path:
    """Put a folder into the cache under a hub id; return the path of its snapshot."""
    repository = cache / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / COMMIT
    snapshot.parent.mkdir(parents=True)
    shutil.copytree(folder, snapshot)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    return snapshot
