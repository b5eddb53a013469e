"""A client's fields for engines, in front of a real vLLM with a KV connector, which they would end.

Needs `nixl` beside that vLLM (`pip install nixl`, or `--no-deps nixl nixl-cu12`), which works
without a GPU.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import MakeRouter, error_of
from tests.vllm.engine import MODEL, Engine, command, free_port
from tests.vllm.publishing import CHAT

#: The role of the engine that decodes: it fetches what the fields name.
TRANSFER = {
    "kv_connector": "NixlConnector",
    "kv_role": "kv_consumer",
    "kv_buffer_device": "cpu",
}
HELLO: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "hello there"}],
    "max_tokens": 2,
}
ALONE = {"do_remote_prefill": True}


@pytest.fixture
def engine(model: Path, tmp_path: Path) -> Engine:
    """An engine with vLLM's own connector."""
    python = Path(command() or "").resolve().parent / "python"
    if subprocess.run([python, "-c", "import nixl"], check=False, capture_output=True).returncode:
        pytest.skip("there is no nixl beside this vLLM")
    side = {
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port()),
        "UCX_TLS": "tcp,sm,self",
    }
    flags = ("--kv-transfer-config", json.dumps(TRANSFER))
    return Engine(model, tmp_path / "engine.log", *flags, environment=side)


def test_a_client_cannot_end_an_engine(engine: Engine, route: MakeRouter) -> None:
    """The router refuses the field that alone ends the engine, wherever it is; sent without the
    router, it does."""
    engine.start()
    try:
        router = route(engine.url)
        for field in (
            {"kv_transfer_params": ALONE},
            {"vllm_xargs": {"kv_transfer_params": "x"}},
        ):
            reply = router.http.post(CHAT, json={**HELLO, **field})
            assert (reply.status_code, "kv_transfer_params" in reply.text) == (400, True)
            assert error_of(reply)["param"].endswith("kv_transfer_params")
            assert router.http.post(CHAT, json=HELLO, timeout=60).status_code == 200
        ended = httpx.post(
            engine.url + CHAT, json={**HELLO, "kv_transfer_params": ALONE}, timeout=60
        )
        assert ended.status_code >= 500, "the connector has learned; look for what it minds now"
    finally:
        engine.stop()
