"""Chats with images: keyed by the tokens before the first image, if all workers agree."""

import json
from array import array
from pathlib import Path
from typing import Any

import pytest

from router.api.endpoints import ENDPOINTS
from tests.rendering.families import Family
from tests.rendering.families import folder as family_folder
from tests.rendering.test_media import IMAGE, SEEING, TOKENS, part
from tests.support import Router, until
from tests.tokenizers.asking import CHAT, keyed, states, tokenizer, until_asked, until_known
from tests.tokenizers.conftest import Start
from tests.tokenizers.engine import Engine

#: Tokens that stand for an image in the engine's prompt.
_PATCHES = [1000, 1001, 1001, 1002]


class Seeing(Engine):
    """A worker with a vision model."""

    first: list[int] = []  # noqa: RUF012 - set by a test
    """Tokens that it puts before a chat with an image."""

    def ids(self, path: str, asked: dict[str, Any]) -> list[int] | None:
        """Return the tokens of a request, with or without images."""
        found = super().ids(path, asked)
        if found is not None or "image_url" not in json.dumps(asked):
            return found
        assert self.volume is not None
        head = self.volume.exact.head(ENDPOINTS[CHAT], json.dumps(asked).encode())
        return [*self.first, *array("I", head.ids), *_PATCHES]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a vision model."""
    return family_folder(tmp_path / "seeing", Family(SEEING, TOKENS, eos="<|im_end|>"))


def look(router: Router) -> None:
    """Ask about an image."""
    content = [part("What is this? " * 40), IMAGE]
    chat = {"model": "m", "messages": [{"role": "user", "content": content}]}
    assert router.http.post(CHAT, json=chat).status_code == 200


def test_workers_that_agree(stack: Any, start: Start, folder: Path) -> None:
    """The state says so, and such chats are keyed by tokens; their total length is not taken as
    known."""
    worker = Seeing(folder)
    stack.callback(worker.stop)
    router = start(worker)
    until_known(router)
    assert tokenizer(router)["workers"][0]["why"].endswith("probes, and before an image")
    look(router)
    assert (keyed(router, "tokens"), keyed(router, "text")) == (1, 0)
    assert router.metric("warmroute_prompts_miscounted_total", pool="default") == 0


def test_a_worker_that_begins_otherwise(stack: Any, start: Start, folder: Path) -> None:
    """Texts are not affected; chats with images are keyed by text for all workers."""
    one, other = Seeing(folder), Seeing(folder)
    other.first = [7]
    for worker in (one, other):
        stack.callback(worker.stop)
    router = start(one, other)
    until_asked(router, one, other)
    until_known(router)
    assert set(states(router).values()) == {"agrees"}
    look(router)
    assert (keyed(router, "tokens"), keyed(router, "text")) == (0, 1)
    reason = "parts that are not text"
    until(lambda: router.metric("warmroute_prompts_by_text_total", pool="default", reason=reason))
