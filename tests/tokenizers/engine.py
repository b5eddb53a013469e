"""A worker that tokenizes with a model folder, and can change its model while it runs."""

import json
import threading
from array import array
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from router.api.endpoints import ENDPOINTS
from router.rendering.messages import NotReproducible
from router.tokenizers.loader import TokenizerCache

_SHELF = TokenizerCache()


def card(name: str, root: object = None, parent: str | None = None) -> dict[str, Any]:
    """Return what `/v1/models` says of a model."""
    said = {"id": name, "object": "model", "created": 1, "owned_by": "vllm"}
    return said | ({} if root is None else {"root": str(root), "parent": parent})


def is_routers(asked: dict[str, Any]) -> bool:
    """Return whether a chat is the router's own probe of what becomes of tools."""
    return asked.get("max_tokens") == 1 and asked.get("tool_choice") == "none"


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore clients that disconnect."""


class Engine:
    """Answers on its own port until `stop`."""

    def __init__(self, folder: Path | None, models: list[dict[str, Any]] | None = None) -> None:
        """Without `models`, it serves `m`, loaded from that folder."""
        self.volume = _SHELF.open(folder) if folder else None
        self.models = [card("m", folder)] if models is None else models
        self.well = True
        self.status = 200
        """Response status of `/tokenize`."""
        self.garbage: bytes | None = None
        """Body of `/tokenize` instead of tokens."""
        self.hold = threading.Event()
        """While not set, `/tokenize` does not answer."""
        self.hold.set()
        self.go = threading.Event()
        """While not set, chats are not answered, but for the router's own probes."""
        self.go.set()
        self.more_tokens = 0
        """Tokens that it reports for a prompt in addition to the actual ones."""
        self.left_out = False
        """Behaves as if started with `--exclude-tools-when-tool-choice-none`."""
        self.mute = False
        """Its answers have no usage."""
        self.takes_ids = True
        """It supports `prompt_token_ids`."""
        self.chats: list[dict[str, Any]] = []
        self.tokenized: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        """Authorization header of each of these requests."""
        self._server = _Server(("127.0.0.1", 0), self._handler())
        self.name = f"127.0.0.1:{self._server.server_address[1]}"
        self.url = f"http://{self.name}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def loads(self, folder: Path, name: str = "m") -> None:
        """Load another model."""
        self.volume = _SHELF.open(folder)
        self.models = [card(name, folder)]

    def stop(self) -> None:
        """Stop serving."""
        self.hold.set()
        self.go.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def ids(self, path: str, asked: dict[str, Any]) -> list[int] | None:
        """Return the tokens of a request; None if it is refused."""
        assert self.volume is not None
        if self.left_out and asked.get("tool_choice") == "none":
            asked = {name: value for name, value in asked.items() if name != "tools"}
        try:
            return array(
                "I", self.volume.exact.ids(ENDPOINTS[path], json.dumps(asked).encode())
            ).tolist()
        except NotReproducible:
            return None

    def get(self, path: str) -> tuple[int, bytes]:
        """Answer a probe."""
        if path == "/health":
            return (200 if self.well else 500), b""
        if path == "/v1/models":
            return 200, json.dumps({"object": "list", "data": self.models}).encode()
        return 404, b"{}"

    def post(self, path: str, asked: dict[str, Any], key: str | None) -> tuple[int, bytes]:
        """Answer a request."""
        chat = "/v1/chat/completions" if "messages" in asked else "/v1/completions"
        if path == "/tokenize":
            self.hold.wait(20)
            self.tokenized.append(asked)
            self.keys.append(key)
            if self.status != 200 or self.garbage is not None:
                return self.status, self.garbage or b"{}"
            ids = self.ids(chat, asked)
            if ids is None:
                return 400, b"{}"
            said = {"count": len(ids), "max_model_len": 4096, "tokens": ids, "token_strs": None}
            return 200, json.dumps(said).encode()
        given = asked.get("kv_transfer_params", {}).get("prompt_token_ids")
        if self.takes_ids and given == []:
            error = {"message": "none", "type": "BadRequestError", "code": 400}
            param = "kv_transfer_params.prompt_token_ids"
            return 400, json.dumps({"error": {**error, "param": param}}).encode()
        if not is_routers(asked):
            self.chats.append(asked)
            self.go.wait(20)
        ids = (self.ids(chat, asked) if self.volume else None) or []
        usage = {"prompt_tokens": len(ids) + self.more_tokens, "completion_tokens": 1}
        told = {} if self.mute else {"usage": usage}
        return 200, json.dumps({"id": "x", "choices": [], **told}).encode()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        engine = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1

            def do_GET(self) -> None:
                self._say(*engine.get(self.path))

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                self._say(*engine.post(self.path, json.loads(body), self.headers["authorization"]))

            def _say(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Log nothing."""

        return Handler
