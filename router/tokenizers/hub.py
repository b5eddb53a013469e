"""Model folders from the Hugging Face hub, through its own library.

A folder comes from its cache, else from a download of the few small files that routing needs.
Everything here blocks for as long as the network takes, so it is called in threads.
"""

from fnmatch import fnmatch
from pathlib import Path

from router.rendering.folder import MAX_FILE_BYTES, PATTERNS, has_tokenizer

#: Files to fetch; the presence of the last one tells which format a model's weights have.
_WANTED = [*PATTERNS, "model.safetensors.index.json"]


class NotFetched(Exception):
    """A model's folder cannot be obtained; the message says why, on one line."""


def snapshot(name: str, *, fresh: bool = False) -> Path:
    """Return the folder of the model `name`. Raises NotFetched.

    The cache is used if it has a tokenizer, as engines that run from it look no further either.
    With `fresh`, the hub is asked first whether there is a newer version.
    """
    from huggingface_hub import constants  # noqa: PLC0415 - slow to import, and seldom needed

    if not fresh or constants.HF_HUB_OFFLINE:
        path = _cached(name)
        if path is not None:
            return path
    if constants.HF_HUB_OFFLINE:
        raise NotFetched(f"{name} is not in the hub's cache, and HF_HUB_OFFLINE is set")
    return _fetched(name)


def _cached(name: str) -> Path | None:
    from huggingface_hub import snapshot_download  # noqa: PLC0415

    try:
        path = Path(snapshot_download(name, allow_patterns=_WANTED, local_files_only=True))
    except Exception:  # noqa: BLE001 - whatever is wrong with the cache, the hub may do better
        return None
    # Engines put weights into this cache too, so a snapshot may lack what is needed here.
    return path if has_tokenizer(path) else None


def _fetched(name: str) -> Path:
    from huggingface_hub import errors, snapshot_download  # noqa: PLC0415
    from huggingface_hub.utils.tqdm import disable_progress_bars  # noqa: PLC0415

    disable_progress_bars()
    try:
        _check_sizes(name)
        path = Path(snapshot_download(name, allow_patterns=_WANTED))
    except NotFetched:
        raise
    except errors.GatedRepoError:
        raise NotFetched(f"{name} is gated on the hub: HF_TOKEN has to open it") from None
    except errors.RepositoryNotFoundError:
        raise NotFetched(f"{name} is not on the hub, or HF_TOKEN does not open it") from None
    except Exception as error:  # noqa: BLE001 - a network has many ways to fail
        raise NotFetched(f"{name} cannot be fetched from the hub: {_brief(error)}") from None
    if not has_tokenizer(path):
        raise NotFetched(f"{name} has no tokenizer on the hub")
    return path


def _check_sizes(name: str) -> None:
    """Raise NotFetched if a file is too large to download; errors of the hub pass through."""
    from huggingface_hub import model_info  # noqa: PLC0415

    for file in model_info(name, files_metadata=True).siblings or ():
        wanted = any(fnmatch(file.rfilename, pattern) for pattern in _WANTED)
        if wanted and (file.size or 0) > MAX_FILE_BYTES:
            raise NotFetched(f"{file.rfilename} of {name} is over {MAX_FILE_BYTES >> 20} MiB")


def _brief(error: Exception) -> str:
    lines = str(error).split("\n")
    return f"{type(error).__name__}: {lines[0][:200]}" if lines[0] else type(error).__name__
