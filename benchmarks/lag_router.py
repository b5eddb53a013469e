"""The router of `benchmarks.lag` and `benchmarks.neighbours`: with or without a tokenizer."""

import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import httpx

from benchmarks.harness.processes import NotReady
from benchmarks.harness.proxies import PROXIES, Launch, Place, Proxy

_SERVE = (
    "import sys; sys.setswitchinterval({0}); from router import process; process.SWITCH_S = {0};"
    " from router.__main__ import main; main()"
)
#: Time limit for loading the tokenizer.
_LOAD_S = 60.0


def router_with(folder: Path | None, interval_ms: float) -> Proxy:
    """Return Warmroute with or without a tokenizer, at a given switch interval."""

    def launch(program: Sequence[str], _mode: str, place: Place) -> Launch:
        settings = place.folder / "warmroute.yaml"
        workers = "".join(f"  - {url}\n" for url in place.urls)
        settings.write_text(
            f"listen: 127.0.0.1:{place.port}\nstrategy: prefixaware\nworkers:\n{workers}"
            f"tokenizer: {folder or 'bytes'}\n"
        )
        code = _SERVE.format(interval_ms / 1e3)
        return Launch([*program, "-c", code, "serve", "--config", str(settings)])

    mode = f"{'tokens' if folder else 'bytes'} {interval_ms:g} ms"
    own = next(proxy for proxy in PROXIES if proxy.program == "warmroute")
    return replace(own, mode=mode, launch=launch)


def await_tokenizer(port: int, *, wanted: bool) -> None:
    """If `wanted`, wait until the metric of a loaded tokenizer has workers. Raises NotReady."""
    deadline = time.monotonic() + _LOAD_S
    while wanted and not total(port, "warmroute_tokenizer_workers"):
        if time.monotonic() > deadline:
            raise NotReady("no tokenizer was loaded")
        time.sleep(0.1)


def total(port: int, name: str, label: str = "") -> int:
    """Return the sum of a metric of the router over the series with this label."""
    told = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    found = re.findall(rf"^{name}{{.*{label}.*}} (\S+)$", told, re.MULTILINE)
    return sum(int(float(one)) for one in found)
