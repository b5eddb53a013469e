"""`warmroute serve` as a fixture."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.commands import Running, Serve, started


@pytest.fixture
def serve(tmp_path: Path, stack: ExitStack) -> Serve:
    """A function that runs `serve` with settings, in front of these workers."""

    def make(*urls: str, args: tuple[object, ...] = (), **settings: Any) -> Running:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.yaml"
        given: dict[str, Any] = {"listen": "127.0.0.1:0", **settings}
        if urls:
            given["workers"] = urls
        path.write_text(json.dumps(given))
        return stack.enter_context(started(tmp_path, "serve", "--config", path, *args))

    return make
