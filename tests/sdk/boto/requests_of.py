"""boto3 in a process of its own: reads orders, one JSON text per line, and writes replies.

Started with the folder in which boto3 was installed. Does not import from the tests.
"""

import json
import sys
import threading
from base64 import b64decode, b64encode
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, sys.argv[1])
# From that folder, not from the tests' environment.
boto3: Any = import_module("boto3")
botocore: Any = import_module("botocore")
Config: Any = import_module("botocore.config").Config
assert Path(botocore.__file__).is_relative_to(sys.argv[1])

_writing = threading.Lock()


def say(told: dict[str, Any]) -> None:
    """Write one line."""
    with _writing:
        print(json.dumps(told), flush=True)


_clients: dict[str, Any] = {}
_making = threading.Lock()
#: Requests sent by this thread's call.
_call = threading.local()


def client(order: dict[str, Any]) -> Any:
    """Return the client that the order describes; clients are reused, as creating one is slow."""
    known = {name: order.get(name) for name in ("url", "service", "config", "keys", "without")}
    text = json.dumps(known)
    with _making:
        if text not in _clients:
            _clients[text] = make(order)
    return _clients[text]


def make(order: dict[str, Any]) -> Any:
    """Create a client that records the header of every HTTP request."""
    config = dict(order.get("config", {}))
    if config.pop("unsigned", False):
        config["signature_version"] = botocore.UNSIGNED
    keys = order.get("keys", ["access", "secret"])
    where = {"endpoint_url": order["url"]} if order.get("url") else {}
    made = boto3.Session().client(
        order.get("service", "sagemaker-runtime"),
        region_name="eu-west-1",
        aws_access_key_id=keys[0],
        aws_secret_access_key=keys[1],
        config=Config(max_pool_connections=32, **config),
        **where,
    )

    def note(request: Any, **_: object) -> None:
        head = {str(name).lower(): _text(value) for name, value in request.headers.items()}
        _call.sent.append(head)

    def bare(request: Any, **_: object) -> None:
        for name in order.get("without", ()):
            del request.headers[name]

    made.meta.events.register("before-sign.sagemaker-runtime", bare)
    made.meta.events.register("before-send.sagemaker-runtime", note)
    return made


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def ask(order: dict[str, Any]) -> None:
    """Carry out one order."""
    sent = _call.sent = list[dict[str, str]]()
    arguments = dict(order["arguments"])
    arguments["Body"] = b64decode(arguments["Body"])
    reply: dict[str, Any] = {"id": order["id"], "parts": []}
    try:
        answer = getattr(client(order), order["operation"])(**arguments)
        metadata, body = answer.pop("ResponseMetadata"), answer.pop("Body")
        reply |= {"status": metadata["HTTPStatusCode"], "headers": metadata["HTTPHeaders"]}
        reply["output"] = answer
        if order["operation"] == "invoke_endpoint":
            reply["body"] = b64encode(body.read()).decode()
        else:
            for event in body:
                reply["parts"].append(b64encode(event["PayloadPart"]["Bytes"]).decode())
                say({"id": order["id"], "event": len(reply["parts"])})
    except Exception as error:  # noqa: BLE001 - whatever a caller would see is reported
        reply["error"] = {
            "class": type(error).__name__,
            "message": str(error),
            "response": _plain(getattr(error, "response", {})),
        }
    reply["sent"] = sent
    say(reply)


def _plain(response: dict[str, Any]) -> dict[str, Any]:
    return dict(json.loads(json.dumps(response, default=str)))


with ThreadPoolExecutor(32) as pool:
    for line in sys.stdin:
        pool.submit(ask, json.loads(line))
