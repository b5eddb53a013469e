"""The scripts that set up the development environment."""

import subprocess
from pathlib import Path

ENVIRONMENT = Path(__file__).parents[2] / "scripts" / "environment"
TAG = "cpython-311-x86_64-linux-gnu.so"


def remove_compiled(root: Path) -> str:
    """Call the shell function of that name, as strictly as the scripts do; return its stderr."""
    script = f'set -euo pipefail; . "{ENVIRONMENT}"; ROOT="{root}"; remove_compiled; echo done >&2'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    return done.stderr


def test_what_a_compiled_build_leaves_is_removed(tmp_path: Path) -> None:
    """Left-over libraries would run in place of the sources; other libraries are kept."""
    left = [f"router/proxy.{TAG}", f"strategies/cost.{TAG}", f"router/a/b.{TAG}", f"1__mypyc.{TAG}"]
    kept = ["router/proxy/proxy.py", f".venv/lib/other.{TAG}", f"other.{TAG}"]
    for name in (*left, *kept):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert "Removed" in remove_compiled(tmp_path)
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert found == set(kept)
    assert remove_compiled(tmp_path) == "done\n"
