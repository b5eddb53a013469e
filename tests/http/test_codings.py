"""A body in a content coding reaches its worker decoded, within its limit; or it is a 415."""

import gzip
import hashlib
import json
import random
import zlib
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import zstandard
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.support import MakeRouter, MakeStub, Router, Stub, error_of

CHAT = "/v1/chat/completions"
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi " * 500}]}).encode()
TAKEN = {"gzip", "deflate", "zstd"}
FORM = (
    b'--X\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\n\r\nRIFF\r\n'
    b'--X\r\ncontent-disposition: form-data; name="model"\r\n\r\nm\r\n--X--\r\n'
)

Coder = Callable[[bytes], bytes]


def bare(body: bytes) -> bytes:
    """Deflate without zlib's header, as many clients mean it."""
    coder = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return coder.compress(body) + coder.flush()


def streamed(body: bytes) -> bytes:
    """A frame of zstd that does not say its length, as streams have it."""
    coder = zstandard.ZstdCompressor().compressobj()
    return coder.compress(body) + coder.flush()


def halves(coder: Coder) -> Coder:
    """Return a coder that makes a member, or a frame, of each half of a body."""
    return lambda body: coder(body[: len(body) // 2]) + coder(body[len(body) // 2 :])


def sent(router: Router, path: str, body: bytes, *codings: str, **fields: str) -> httpx.Response:
    """Send a body whose codings are told in a header line each."""
    told = [("content-encoding", coding) for coding in codings]
    return router.http.post(path, content=body, headers=[*told, *fields.items()])


def arrived(worker: Stub) -> tuple[bytes, bytes]:
    """Head, in lower case, and body of the last request at the worker."""
    head, _, body = worker.requests[-1].partition(b"\r\n\r\n")
    return head.lower() + b"\r\n", body


@pytest.mark.parametrize(
    ("codings", "coder"),
    [
        (["gzip"], gzip.compress),
        (["X-GZip"], gzip.compress),
        (["gzip"], halves(gzip.compress)),
        (["deflate"], zlib.compress),
        (["deflate"], bare),
        (["zstd"], zstandard.compress),
        (["zstd"], streamed),
        (["zstd"], halves(zstandard.compress)),
        (["identity"], bytes),
        ([""], bytes),
        (["gzip, identity ,zstd"], lambda body: zstandard.compress(gzip.compress(body))),
        (["deflate", "gzip"], lambda body: gzip.compress(zlib.compress(body))),
    ],
)
@pytest.mark.parametrize("size", [0, 1_000_000])
def test_a_coded_body(
    worker: Stub, route: MakeRouter, codings: list[str], coder: Coder, size: int
) -> None:
    """The worker gets it decoded, with its own length and without the codings' names."""
    router = route(worker.url)
    noise = random.Random(size).randbytes(size // 2).hex().encode()
    body = BODY[:-1] + b',"user":"%b"}' % noise
    assert sent(router, CHAT, coder(body), *codings).status_code == 200
    head, got = arrived(worker)
    assert got == body
    assert b"\r\ncontent-length: %d\r\n" % len(body) in head
    assert b"content-encoding" not in head


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        ("/v1/audio/transcriptions", FORM, "multipart/form-data; boundary=X"),
        ("/invocations", BODY, "application/json"),
        ("/endpoints/x/openai/v1/chat/completions", BODY, "application/json"),
    ],
)
def test_on_other_paths(worker: Stub, door: Router, path: str, body: bytes, kind: str) -> None:
    """Forms and SageMaker's requests too."""
    reply = sent(door, path, zstandard.compress(body), "zstd", **{"content-type": kind})
    assert (reply.status_code, arrived(worker)[1]) == (200, body)


def test_a_small_body_of_a_large_one(worker: Stub, route: MakeRouter) -> None:
    """Whatever the ratio, up to the limit."""
    router = route(worker.url)
    body = BODY + b" " * 2_000_000
    for codings, coded in (
        (["gzip"], gzip.compress(body)),
        (["zstd", "gzip"], gzip.compress(zstandard.compress(body))),
    ):
        assert len(coded) < 4096
        assert sent(router, CHAT, coded, *codings).status_code == 200
        assert arrived(worker)[1] == body


def test_what_is_decoded_is_what_is_judged(worker: Stub, door: Router) -> None:
    """Limits and explanations see the decoded body."""
    worker.requests.clear()
    body = gzip.compress(BODY[:-1] + b',"n":1000}')
    reply = sent(door, CHAT, body, "gzip")
    assert (reply.status_code, error_of(reply)["param"]) == (400, "n")
    assert sent(door, "/explain", body, "gzip").status_code == 400
    assert sent(door, "/explain", gzip.compress(BODY), "gzip").json()["workers"]
    assert worker.requests == []


GZIPPED = gzip.compress(BODY, mtime=0)


@pytest.mark.parametrize(
    ("codings", "body"),
    [
        *((["br"], BODY), (["compress"], BODY), (["aws-chunked, gzip"], GZIPPED)),
        *((["gzip;q=1"], GZIPPED), (["gzip"] * 5, GZIPPED), (["gzip"], BODY)),
        *((["gzip"], GZIPPED[:-1]), (["gzip"], GZIPPED + b"\0")),
        (["gzip"], gzip.compress(b"") * 2000 + GZIPPED),
        (["deflate"], zlib.compress(BODY)[:-5]),
        (["deflate"], zlib.compress(BODY) * 2),
        (["zstd"], BODY),
        (["zstd"], zstandard.compress(BODY)[:-1]),
        (["zstd"], streamed(random.Random(1).randbytes(9000))[:-1]),
        (["zstd"], zstandard.compress(BODY) + b"x"),
        (["zstd", "zstd"], zstandard.compress(BODY)),
    ],
)
def test_what_is_not_taken(worker: Stub, door: Router, codings: list[str], body: bytes) -> None:
    """An unknown coding, and a body that is not in the one it names: 415, with those taken."""
    worker.requests.clear()
    for path in (CHAT, "/invocations", "/explain"):
        reply = sent(door, path, body, *codings)
        assert reply.status_code == 415
        assert set(reply.headers["accept-encoding"].split(", ")) == TAKEN
        assert codings[-1][:4] in reply.text
    assert worker.requests == []


@pytest.mark.parametrize(
    ("coding", "coder"),
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("zstd", zstandard.compress),
        ("gzip, gzip", lambda body: gzip.compress(gzip.compress(body))),
    ],
)
def test_a_bomb(worker: Stub, door: Router, coding: str, coder: Coder) -> None:
    """What decodes to more than the limit is a 413."""
    worker.requests.clear()
    body = coder(BODY + b" " * 64_000_000)
    for path in (CHAT, "/invocations", "/explain"):
        reply = sent(door, path, body, coding)
        assert (reply.status_code, "decoded" in reply.text) == (413, True)
    assert worker.requests == []


def test_a_window_that_is_too_large(worker: Stub, door: Router) -> None:
    """A frame that makes its reader hold 128 MiB is refused, however short it is."""
    parameters = zstandard.ZstdCompressionParameters(window_log=27)
    coder = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    worker.requests.clear()
    reply = sent(door, CHAT, coder.compress(BODY) + coder.flush(), "zstd")
    assert (reply.status_code, worker.requests) == (415, [])


def test_no_body_at_all(door: Router) -> None:
    """The header without a body means nothing."""
    reply = door.http.get("/v1/models", headers={"content-encoding": "gzip"})
    assert reply.status_code == 200
    assert door.http.get("/workers", headers={"content-encoding": "br"}).status_code == 200


def test_a_signature_is_of_what_was_sent(
    stub: MakeStub, route: MakeRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SigV4 covers the coded body; the worker gets the decoded one."""
    monkeypatch.setenv("SECRET", "right")
    keys = [{"access_key": "AKIA1", "secret_key": "${SECRET}"}]
    worker = stub()
    router = route(worker.url, auth="none", sagemaker={"sigv4": keys})
    body = gzip.compress(BODY, mtime=0)
    url = f"{router.url}/endpoints/x/invocations"
    fields = {"content-encoding": "gzip", "x-amz-content-sha256": hashlib.sha256(body).hexdigest()}
    asked: Any = AWSRequest("POST", url, headers=fields, data=body)
    SigV4Auth(Credentials("AKIA1", "right"), "sagemaker", "us-east-1").add_auth(asked)
    headers = dict(asked.headers.items())
    assert httpx.post(url, content=body, headers=headers).status_code == 200
    assert arrived(worker)[1] == BODY
    assert httpx.post(url, content=gzip.compress(BODY + b" "), headers=headers).status_code == 403


def test_answers_are_asked_for_in_no_coding(stub: MakeStub, route: MakeRouter) -> None:
    """Whatever the client accepts: what workers say is read, also by probes."""
    worker = stub()
    router = route(worker.url)
    fields = {"accept-encoding": "gzip, br, zstd", "x-after": "1"}
    for stream in (True, False):
        body = {"model": "m", "stream": stream}
        assert router.http.post(CHAT, json=body, headers=fields).status_code == 200
        head, _ = arrived(worker)
        assert head.count(b"accept-encoding") == head.count(b"accept-encoding: identity\r\n") == 1
        assert b"\r\nx-after: 1\r\n" in head
    assert b"\r\naccept-encoding: identity\r\n" in worker.probes[-1].lower()
