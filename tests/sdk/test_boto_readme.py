"""The script in the README does what the README says."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands import started
from tests.sdk.boto.client import Boto
from tests.support import until

README = Path(__file__).parents[2] / "README.md"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`warmroute demo`, once it has compared and goes on serving; its URL."""
    folder = tmp_path_factory.mktemp("demo")
    with started(folder, "demo", "--listen", "127.0.0.1:0") as running:
        serves = re.compile(r"on (http://[0-9.:]+), until Ctrl-C")

        def url() -> str:
            assert running.process.poll() is None, running.err.read_text()
            found = serves.search(running.out.read_text())
            return found[1] if found else ""

        until(url, 150)
        yield url()


@pytest.mark.timeout(240)  # the demo's comparison comes first
def test_three_turns_on_one_worker(boto: Boto, demo: str) -> None:
    """In ten lines, against the demo itself: ever more tokens are cached."""
    script = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)[0]
    assert "boto3.client" in script
    assert len(script.splitlines()) <= 10
    text = script.replace("http://127.0.0.1:8080", demo)
    where = f"import sys; sys.path.insert(0, {str(boto.folder)!r})\n"
    done = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", "-c", where + text],
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
    )
    turns = [line.split(" ", 1) for line in done.stdout.splitlines()]
    assert len(turns) == 3
    assert len({worker for worker, _ in turns}) == 1
    first, second, third = (
        json.loads(told.replace("'", '"'))["cached_tokens"] for _, told in turns
    )
    assert first < second < third
