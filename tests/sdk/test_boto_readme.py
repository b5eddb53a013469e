"""The script in the README does what the README says."""

import re
import subprocess
import sys
from pathlib import Path

from router.demo import SERVES
from simulator.fleet import FleetSettings
from simulator.thread import FleetThread
from tests.sdk.boto.client import Boto
from tests.support import MakeRouter

README = Path(__file__).parents[2] / "README.md"


def test_three_turns_on_one_worker(boto: Boto, route: MakeRouter) -> None:
    """With ever more tokens cached; the demo's own router serves it, as the demo sets it up."""
    script = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)[0]
    assert "boto3.client" in script
    settings = FleetSettings(workers=4, profile="toy", models=("toy",), kv_events=False)
    with FleetThread(settings) as fleet:
        router = route(*fleet.urls, strategy=SERVES["prefixaware"])
        text = script.replace("http://127.0.0.1:8080", router.url)
        where = f"import sys; sys.path.insert(0, {str(boto.folder)!r})\n"
        done = subprocess.run(
            [sys.executable, "-P", "-W", "ignore", "-c", where + text],
            capture_output=True,
            text=True,
            check=True,
            timeout=50,
        )
    turns = [line.split() for line in done.stdout.splitlines()]
    assert len(turns) == 3
    assert len({worker for worker, _ in turns}) == 1
    cached = [int(tokens) for _, tokens in turns]
    assert cached[0] <= cached[1] < cached[2] or cached[0] < cached[1] <= cached[2]
    assert cached[1] > 0
