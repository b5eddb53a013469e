"""A worker made with AWS's model-hosting-container-standards, which keeps sessions itself.

This library is also behind vLLM's `/invocations`. Started with the folder in which it was
installed, and a listening socket. Does not import from the tests.
"""

import os
import socket
import sys
from importlib import import_module
from typing import Any

sys.path.insert(0, sys.argv[1])
fastapi: Any = import_module("fastapi")  # from that folder, like the imports below
uvicorn: Any = import_module("uvicorn")
standards: Any = import_module("model_hosting_container_standards.sagemaker")

app: Any = fastapi.FastAPI()
seen: list[dict[str, Any]] = []


async def invoke(request: fastapi.Request) -> dict[str, Any]:
    """Return this process's id, and record the request."""
    seen.append({"headers": dict(request.headers), "body": (await request.body()).decode()})
    return {"pid": os.getpid(), "choices": [], "usage": {"prompt_tokens": 1}}


async def health() -> dict[str, str]:
    """Answer the health check."""
    return {}


async def models() -> dict[str, Any]:
    """List one model."""
    return {"object": "list", "data": [{"id": "m"}]}


async def told() -> list[dict[str, Any]]:
    """Return the requests that reached the handler."""
    return seen


in_sessions = standards.stateful_session_manager()(invoke)
for path in ("/invocations", "/v1/chat/completions"):
    app.add_api_route(path, in_sessions, methods=["POST"])
for path, say in (("/health", health), ("/v1/models", models), ("/seen", told)):
    app.add_api_route(path, say)
standards.bootstrap(app)
server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
server.run(sockets=[socket.socket(fileno=int(sys.argv[2]))])
