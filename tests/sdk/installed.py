"""Python packages in folders of their own, in the tests' environment."""

import fcntl
import subprocess
import sys
from pathlib import Path


def installed(name: str, *wanted: str) -> Path:
    """Install packages if they are missing; return their folder. Concurrent runs take turns."""
    folder = Path(sys.prefix) / name
    folder.parent.mkdir(exist_ok=True)
    with folder.with_name(f".lock-{folder.name}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / ".whole").exists():
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder)]
            done = subprocess.run(
                [*command, "--disable-pip-version-check", "--upgrade", *wanted],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise RuntimeError(f"pip could not install {wanted}:\n{done.stderr}")
            (folder / ".whole").touch()
    return folder
