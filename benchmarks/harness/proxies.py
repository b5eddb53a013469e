"""The proxies to compare, and how each is started in front of the same workers.

All run with their defaults, with two exceptions. Peers do not log requests, as Warmroute does not
by default either. And nginx is set up as a plain proxy for streams needs: keep-alive connections,
no buffering of answers, and request bodies in memory.
"""

import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from benchmarks.harness.stub import MODEL


class Group(StrEnum):
    """What a proxy does; only proxies of the same group are compared."""

    BLIND = "round robin"
    AWARE = "prefix aware"
    FLOOR = "plain proxy"


@dataclass(frozen=True, slots=True)
class ProxyPlace:
    """Where a proxy is to run."""

    folder: Path
    port: int
    spare: int
    """A second free port, for metrics."""
    workers: Sequence[str]
    """Host and port of each worker."""
    options: Sequence[str] = ()
    """Additional arguments for `warmroute serve`."""

    @property
    def urls(self) -> list[str]:
        """Return the workers' URLs."""
        return [f"http://{worker}" for worker in self.workers]


@dataclass(frozen=True, slots=True)
class Launch:
    """A command, and variables to add to its environment."""

    command: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProxyProcess:
    """One row of the tables."""

    program: str
    """Its name on PATH and in `--peer`."""
    mode: str
    group: Group
    launch: Callable[[Sequence[str], str, ProxyPlace], Launch]
    """Makes the launch from the program, the mode and the place."""
    alive: str
    """Path of its liveness endpoint; nginx has none, so a worker's is used through it."""
    slow: bool = False
    """Whether it gets only a part of the requests, because it would take most of the time."""

    @property
    def name(self) -> str:
        """Its name in the tables."""
        return f"{self.program} {self.mode}".strip()


#: Separates the strategy from the number of processes in a mode of Warmroute. (Peers use every core
#: by default.)
TIMES = " x"


def _warmroute(program: Sequence[str], mode: str, place: ProxyPlace) -> Launch:
    settings = place.folder / "warmroute.yaml"
    workers = "".join(f"  - {url}\n" for url in place.urls)
    strategy, _, processes = mode.partition(TIMES)
    settings.write_text(
        f"listen: 127.0.0.1:{place.port}\nstrategy: {strategy}\nworkers:\n{workers}"
    )
    options = ("--processes", processes) if processes else ()
    return Launch([*program, "serve", "--config", str(settings), *options, *place.options])


def _gateway(program: Sequence[str], mode: str, place: ProxyPlace) -> Launch:
    """Launch SGLang's gateway, or its successor, which has the same command line."""
    return Launch(
        [
            *(*program, "launch", "--host", "127.0.0.1", "--port", str(place.port)),
            *("--worker-urls", *place.urls, "--policy", mode, "--log-level", "warn"),
            *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(place.spare)),
        ]
    )


def _vllm_router(program: Sequence[str], mode: str, place: ProxyPlace) -> Launch:
    return Launch(
        [
            *(*program, "--host", "127.0.0.1", "--port", str(place.port)),
            *("--worker-urls", *place.urls, "--policy", mode, "--log-level", "warning"),
            *("--prometheus-port", str(place.spare)),
        ]
    )


def _litellm(program: Sequence[str], _mode: str, place: ProxyPlace) -> Launch:
    settings = place.folder / "litellm.yaml"
    settings.write_text(
        "model_list:\n"
        + "".join(
            f"  - model_name: {MODEL}\n"
            f"    litellm_params: {{model: hosted_vllm/{MODEL}, api_base: {url}/v1}}\n"
            for url in place.urls
        )
    )
    return Launch(
        [
            *(*program, "--config", str(settings), "--telemetry", "False"),
            *("--host", "127.0.0.1", "--port", str(place.port)),
        ],
        {
            "LITELLM_LOG": "ERROR",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
        },
    )


_NGINX = """
daemon off;
user root;
worker_processes auto;
pid {folder}/nginx.pid;
error_log stderr error;
events {{ worker_connections 16384; }}
worker_rlimit_nofile 40000;
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  client_max_body_size 16m;
  client_body_buffer_size 1m;
  keepalive_requests 100000000;
  upstream workers {{
    {servers}
    keepalive 256;
    keepalive_requests 100000000;
  }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://workers;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
      proxy_read_timeout 10m;
    }}
  }}
}}
"""


def _nginx(program: Sequence[str], _mode: str, place: ProxyPlace) -> Launch:
    settings = place.folder / "nginx.conf"
    servers = "".join(f"server {worker};" for worker in place.workers)
    settings.write_text(_NGINX.format(folder=place.folder, servers=servers, port=place.port))
    return Launch([*program, "-c", str(settings), "-p", str(place.folder), "-e", "stderr"])


#: Name of another Warmroute version to compare with; run only if its command is given.
BEFORE = "before"

PROXIES = (
    ProxyProcess("warmroute", "roundrobin", Group.BLIND, _warmroute, "/health/live"),
    ProxyProcess("warmroute", f"roundrobin{TIMES}2", Group.BLIND, _warmroute, "/health/live"),
    ProxyProcess(BEFORE, "roundrobin", Group.BLIND, _warmroute, "/health/live"),
    ProxyProcess("sglang-router", "round_robin", Group.BLIND, _gateway, "/liveness"),
    ProxyProcess("smg", "round_robin", Group.BLIND, _gateway, "/liveness"),
    ProxyProcess("vllm-router", "round_robin", Group.BLIND, _vllm_router, "/liveness"),
    ProxyProcess("litellm", "", Group.BLIND, _litellm, "/health/liveliness", slow=True),
    ProxyProcess("warmroute", "prefixaware", Group.AWARE, _warmroute, "/health/live"),
    ProxyProcess("warmroute", f"prefixaware{TIMES}2", Group.AWARE, _warmroute, "/health/live"),
    ProxyProcess(BEFORE, "prefixaware", Group.AWARE, _warmroute, "/health/live"),
    ProxyProcess("sglang-router", "cache_aware", Group.AWARE, _gateway, "/liveness"),
    ProxyProcess("smg", "cache_aware", Group.AWARE, _gateway, "/liveness"),
    ProxyProcess("vllm-router", "cache_aware", Group.AWARE, _vllm_router, "/liveness"),
    ProxyProcess("nginx", "", Group.FLOOR, _nginx, "/health"),
)


def programs(
    peers: Sequence[str], warmroute: str | None, before: str | None = None
) -> dict[str, list[str]]:
    """Return the command of every installed proxy. Raises ValueError for unusable arguments."""
    known = {proxy.program for proxy in PROXIES} - {BEFORE}
    commands = {name: [path] for name in known if (path := shutil.which(name)) is not None}
    for peer in peers:
        name, separator, command = peer.partition("=")
        if not separator or name not in known:
            raise ValueError(f"--peer {peer}: NAME=COMMAND, with one of {', '.join(sorted(known))}")
        commands[name] = _command(command)
    if warmroute is not None:
        commands["warmroute"] = _command(warmroute)
    elif (own := Path(sys.executable).with_name("warmroute")).exists():
        commands["warmroute"] = [str(own)]
    if before is not None:
        commands[BEFORE] = _command(before)
    return commands


def _command(text: str) -> list[str]:
    """Split a command, with its program's path made absolute, as it runs in another folder."""
    words = shlex.split(text)
    path = shutil.which(words[0]) if words else None
    if path is None:
        raise ValueError(f"no such command: {text}")
    # Links are not resolved: a virtual environment's Python finds its packages by the link's path.
    return [str(Path(path).absolute()), *words[1:]]


def version(program: Sequence[str], name: str) -> str:
    """Return the version of an installed program, or "?" if it cannot be found."""
    package = "warmroute" if name == BEFORE else name.replace("-", "_")
    site = f"lib/python*/site-packages/{package}-*.dist-info"
    for folder in Path(program[0]).parent.parent.glob(site):
        return folder.name.removesuffix(".dist-info").rpartition("-")[2]
    if name == "nginx":
        process = subprocess.run([*program, "-v"], capture_output=True, text=True, check=False)
        return process.stderr.strip().rpartition("/")[2]
    return "?"
