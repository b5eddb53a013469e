"""The script for boto3 in the manual, and the command that the demo prints, do what they say."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.commands import started
from tests.sdk.boto.client import Boto
from tests.support import until

MANUAL = Path(__file__).parents[2] / "docs" / "sessions.md"


class Demo(NamedTuple):
    """A demo that is serving."""

    url: str
    invitation: str
    """What it prints when it starts serving."""


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    """`warmroute demo`, once its comparison is done and it keeps serving."""
    folder = tmp_path_factory.mktemp("demo")
    with started(folder, "demo", "--listen", "127.0.0.1:0") as running:

        def invitation() -> str:
            assert running.process.poll() is None, running.err.read_text()
            return running.out.read_text().partition("Still serving on ")[2]

        until(lambda: "/docs" in invitation(), 150)
        yield Demo(invitation().split()[0], invitation())


@pytest.mark.timeout(240)  # the demo's comparison comes first
def test_three_turns_on_one_worker(boto: Boto, demo: Demo) -> None:
    """The manual's script, at most ten lines, run against the demo: cached tokens grow with each
    turn."""
    blocks = re.findall(r"```python\n(.*?)```", MANUAL.read_text(encoding="utf-8"), re.DOTALL)
    script = next(block for block in blocks if "boto3.client" in block)
    assert len(list(filter(None, script.splitlines()))) <= 10
    text = script.replace("http://127.0.0.1:8080", demo.url)
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
    told = [ast.literal_eval(usage) for _, usage in turns]
    first, second, third = (one["prompt_tokens_details"]["cached_tokens"] for one in told)
    assert first < second < third


@pytest.mark.timeout(240)
def test_what_the_demo_says_to_try(demo: Demo) -> None:
    """The same prompt twice: the second time the same worker holds it, as the header shows."""
    (command,) = re.findall(r"^  curl .*\n.*$", demo.invitation, re.MULTILINE)
    told = []
    for _ in range(2):
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
        told.append(dict(re.findall(r"^x-warmroute-(\w+): (.*)$", done.stdout, re.MULTILINE)))
    assert told[0]["worker"] == told[1]["worker"]
    assert told[0]["decision"].startswith("cold; held=0;")
    assert re.match(r"prefix; held=[1-9]", told[1]["decision"])
