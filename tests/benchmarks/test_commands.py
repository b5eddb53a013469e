"""Each benchmark is a command that starts, measures a tiny input and prints its table."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tokenizers.models import make_model as make_folder

ROOT = Path(__file__).parents[2]
#: Stands for the folder of a small model.
MODEL = "MODEL"

#: The command's arguments, and what its output must have: headings, and rows by their first cells.
PRINTS = {
    "decision": (["--against", "."], ["prompt bytes", "261,000", "to the other version"]),
    "example": ([], ["| A, holds", "| B, holds", "3 s booked on A: B wins"]),
    "index": (
        ["--blocks=6400", "--large=6400", "--workers=8", "--bound=4", "--events=100"],
        ["stored, raw frames", "full, ", "256 an event", "32,768 tokens"],
    ),
    "lag": (
        ["--streams=3", "--rate=2", "--tokens=2000", "--seconds=1", f"--model={MODEL}"],
        ["/health/live", "by tokens", "text", "tokens"],
    ),
    "neighbours": (
        ["--only=1,000 tools", "--seconds=0.5", "--rest=0.1", f"--model={MODEL}"],
        ["with a tokenizer", "added p99 ms", "x200", "memory: "],
    ),
    "overhead": (
        ["--quick", "--rounds=1", "--size=400", "--only=warmroute roundrobin"],
        ["CPU µs of the proxy", "Latency added", "Requests a second", "Memory, MB"],
    ),
    "prompts": (
        ["--size=500", "--rounds=1", f"--model={MODEL}"],
        ["From body to keys", "growing", "Where it goes", "Keys alone"],
    ),
    "routing": (
        ["--column=documents", "--policy=prefixaware", "--policy=round robin"],
        ["Mean TTFT", "prefixaware", "round robin"],
    ),
    "routing.sensitivity": (
        ["--constant=PRICE", "--column=documents"],
        ["PRICE", "documents"],
    ),
    "scenarios": (["--scenario=tight", "--size=0.05", "--jobs=2"], ["3 of 3 checks hold", "tight"]),
    "seeds": (
        ["--only=8k", "--clients=10", "--span=20", "--jobs=2"],
        ["published", "| simulated | random | GPU |", "- simulated, 8k contexts: kvaware"],
    ),
    "sessions": (
        ["--sessions=1000", "--requests=100"],
        ["bytes each", "sweep ms", "in a session"],
    ),
    "steps": ([], ["rank two workers", "all of them", "roundrobin", "prefixaware"]),
    "streams": (
        ["--streams=20", "--seconds=1", "--workers=1", "--clients=1", "--only=warmroute"],
        ["delay p50", "kB/stream", "warmroute"],
    ),
}
#: Commands that fail where the router does; a busy machine may make it.
JUDGES = {
    "overload": (["--seconds=1"], ["goodput/s", "At the highest load"]),
    "soak": (["--minutes=0.1"], ["Requests by kind and end", "lost that could have been saved"]),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model's folder."""
    return make_folder(tmp_path_factory.mktemp("model"))


#: Commands that start routers and measure them, or compute for long.
LONG = {
    *("lag", "neighbours", "overhead", "overload", "seeds", "sessions", "soak", "streams"),
    *("index", "prompts", "routing", "routing.sensitivity"),
}


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long if name in LONG else ())
        for name in (*PRINTS, *JUDGES)
    ],
)
def test_a_command_prints_its_table(name: str, model: Path, tmp_path: Path) -> None:
    """It exits with 0, unless it judges the router, and its output has every part."""
    arguments, parts = {**PRINTS, **JUDGES}[name]
    command = [sys.executable, "-m", f"benchmarks.{name}"]
    done = subprocess.run(
        [*command, *(argument.replace(MODEL, str(model)) for argument in arguments)],
        cwd=ROOT,
        env={"PATH": str(Path(sys.executable).parent), "COLUMNS": "200", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in ({0, 1} if name in JUDGES else {0}), done.stderr
    assert [part for part in parts if part not in done.stdout] == [], done.stdout + done.stderr
    assert "Traceback" not in done.stderr
