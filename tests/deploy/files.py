"""The files under `deploy/`, parsed as their users would."""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from ruamel.yaml import YAML

DEPLOY = Path(__file__).parents[2] / "deploy"
ROUTES = ("native", "lmcache")
_VARIABLE = re.compile(r"\$\{\w+(?::[-?]([^}]*))?\}")


def documents(path: Path) -> list[Any]:
    """Return every document of a YAML file; duplicate keys are errors."""
    return list(YAML(typ="safe", pure=True).load_all(path.read_text(encoding="utf-8")))


def resource(path: Path, kind: str, name: str) -> Any:
    """Return one Kubernetes resource."""
    found = [
        one for one in documents(path) if (one["kind"], one["metadata"]["name"]) == (kind, name)
    ]
    assert len(found) == 1
    return found[0]


class Engine(NamedTuple):
    """One worker, however it is started."""

    image: str
    args: list[str]
    environment: dict[str, str]

    def option(self, name: str) -> Any:
        """Return the value of an option, which is JSON."""
        (found,) = [arg for arg in self.args if arg.startswith(f"{name}=")]
        return json.loads(found.partition("=")[2])


def composed(route: str) -> dict[str, Engine]:
    """Return the workers of a compose file by name, with the defaults of all variables."""
    (data,) = documents(DEPLOY / "compose" / f"{route}.yaml")
    return {
        name: Engine(
            plain(service["image"]),
            [plain(arg) for arg in service["command"]],
            {key: plain(value) for key, value in service["environment"].items()},
        )
        for name, service in data["services"].items()
        if name.startswith("worker-")
    }


def clustered(route: str) -> Engine:
    """Return the worker of a StatefulSet, all of whose pods are equal."""
    stateful = resource(DEPLOY / "kubernetes" / f"{route}.yaml", "StatefulSet", "vllm")
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    environment = {one["name"]: one.get("value", "") for one in container["env"]}
    return Engine(container["image"], container["args"], environment)


def plain(text: str) -> str:
    """Replace each variable by its default, as compose does if it is not set."""
    return _VARIABLE.sub(lambda found: found[1] or "", text)
