"""KV events over real ZeroMQ: frames, encodings, chains, replay, restarts."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import msgspec
import pytest
import zmq

from simulator.fleet import FleetThread
from simulator.worker import SimulatedWorker

Start = Callable[..., FleetThread]

END = b"\xff" * 8


class BlockStored(msgspec.Struct, tag=True, kw_only=True):
    """vLLM's event as a typed subscriber decodes it."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[str] | None] | None = None
    group_idx: int | None = None


class BlockRemoved(msgspec.Struct, tag=True, kw_only=True):
    """One or more blocks evicted."""

    block_hashes: list[int]
    medium: str | None = None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, tag=True):
    """The prefix cache was reset."""


Event = BlockStored | BlockRemoved | AllBlocksCleared
decode = msgspec.msgpack.Decoder(tuple[float, list[Event], int]).decode


@contextmanager
def socket(kind: int, endpoint: str | None) -> Iterator[zmq.Socket[bytes]]:
    """Connect a ZeroMQ socket with a receive timeout of 20 seconds."""
    assert endpoint is not None
    with zmq.Context() as context, context.socket(kind) as connected:
        connected.setsockopt(zmq.RCVTIMEO, 20_000)
        connected.setsockopt(zmq.LINGER, 0)
        connected.setsockopt(zmq.IPV6, "[" in endpoint)
        if kind == zmq.SUB:
            connected.subscribe(b"")
        connected.connect(endpoint)
        yield connected


def complete(worker: SimulatedWorker, prompt: list[int], **more: Any) -> None:
    """Have the worker compute a prompt."""
    body = {"prompt": prompt, "max_tokens": 1, **more}
    httpx.post(f"{worker.url}/v1/completions", json=body).raise_for_status()


def replay(worker: SimulatedWorker, start: int) -> list[list[bytes]]:
    """Return what the replay socket answers, without the empty first frames and the end marker."""
    answers: list[list[bytes]] = []
    with socket(zmq.DEALER, worker.kv_replay) as dealer:
        dealer.send_multipart([b"", start.to_bytes(8, "big")])
        while True:
            empty, *frames = dealer.recv_multipart()
            assert empty == b""
            if frames == [b"", END, b""]:
                return answers
            answers.append(frames)


def events(worker: SimulatedWorker, start: int = 0) -> list[Event]:
    """Return all events from a sequence number on, by replay."""
    return [event for frames in replay(worker, start) for event in decode(frames[2])[1]]


def joined(worker: SimulatedWorker, subscriber: zmq.Socket[bytes]) -> list[bytes]:
    """Compute prompts until the subscription is in effect; return the first message received."""
    for prompt in range(1000, 2000):
        complete(worker, [prompt] * 16)
        if subscriber.poll(50):
            return subscriber.recv_multipart()
    raise AssertionError("the subscription never took")


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_subscriber_gets_three_frames_in_sequence(start: Start, host: str) -> None:
    """Topic, sequence number and payload; the number rises by one with each step that changed the
    cache."""
    (worker,) = start(host=host).workers
    with socket(zmq.SUB, worker.kv_events) as subscriber:
        first = joined(worker, subscriber)
        complete(worker, list(range(48)))
        second = subscriber.recv_multipart()
    for topic, number, payload in (first, second):
        assert topic == b"kv@sim-1@toy"
        assert len(number) == 8
        timestamp, batch, rank = decode(payload)
        assert abs(timestamp - time.time()) < 60
        assert batch
        assert rank == 0
    numbers = [int.from_bytes(frames[1], "big") for frames in (first, second)]
    assert numbers[1] == numbers[0] + 1


def test_blocks_form_a_chain_by_parent(start: Start) -> None:
    """Following parents, the prompt's tokens can be reassembled from the first block on."""
    (worker,) = start().workers
    prompt = list(range(100))
    complete(worker, prompt[:32])
    complete(worker, prompt)
    first, second = events(worker)
    assert isinstance(first, BlockStored)
    assert isinstance(second, BlockStored)
    assert first.parent_block_hash is None
    assert second.parent_block_hash == first.block_hashes[-1]
    assert first.token_ids + second.token_ids == prompt[:96]
    assert len(first.block_hashes + second.block_hashes) == 6
    assert (first.medium, first.group_idx, first.block_size) == ("GPU", 0, 16)


def test_a_reset_is_announced_before_what_follows(start: Start) -> None:
    """The reset comes with the next step's batch, before what that step stored."""
    (worker,) = start().workers
    complete(worker, list(range(32)))
    assert httpx.post(f"{worker.url}/reset_prefix_cache").json() == {"success": True}
    complete(worker, list(range(32)))
    kinds = [type(event) for event in events(worker)]
    assert kinds == [BlockStored, AllBlocksCleared, BlockStored]


def test_replay_returns_everything_from_a_number_on(start: Start) -> None:
    """Each message comes with topic and number; there are none if nothing is newer."""
    (worker,) = start().workers
    for prompt in range(5):
        complete(worker, [prompt] * 16)
    frames = replay(worker, 2)
    assert [int.from_bytes(number, "big") for _, number, _ in frames] == [2, 3, 4]
    assert {topic for topic, _, _ in frames} == {b"kv@sim-1@toy"}
    assert replay(worker, 99) == []


def test_the_array_encoding_has_every_field_in_its_place(start: Start) -> None:
    """The encoding that vLLM used up to 0.23."""
    (worker,) = start(kv_encoding="array", kv_tokens=64).workers
    complete(worker, list(range(32)))
    complete(worker, list(range(100, 160)))
    httpx.post(f"{worker.url}/reset_prefix_cache")
    complete(worker, [1])
    batches = [msgspec.msgpack.decode(payload)[1] for _, _, payload in replay(worker, 0)]
    (stored,) = batches[0]
    assert stored[0] == "BlockStored"
    assert len(stored[1]) == 2
    assert stored[2:5] == [None, list(range(32)), 16]
    assert stored[5:] == [None, "GPU", None, [None, None], 0, "full_attention", None]
    removed = [event for event in batches[1] if event[0] == "BlockRemoved"]
    assert removed[0] == ["BlockRemoved", [stored[1][1]], "GPU", 0]
    assert batches[2] == [["AllBlocksCleared"]]


def test_a_restart_begins_a_new_stream_at_the_same_address(start: Start) -> None:
    """Numbers start again at 0, the replay buffer is gone, and the cache is cold."""
    (worker,) = start().workers
    before = (worker.url, worker.kv_events, worker.kv_replay)
    for prompt in range(3):
        complete(worker, [prompt] * 16)
    old = worker.engine
    httpx.post(f"{worker.url}/simulator/fault", json={"kind": "restart"}).raise_for_status()
    deadline = time.monotonic() + 20
    while worker.engine is old or worker.fault is not None:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    with socket(zmq.SUB, worker.kv_events) as subscriber:
        transport = httpx.HTTPTransport(retries=5)
        with httpx.Client(transport=transport) as client:
            client.get(f"{worker.url}/health").raise_for_status()
        joined(worker, subscriber)
    assert (worker.url, worker.kv_events, worker.kv_replay) == before
    first = replay(worker, 0)[0]
    assert first[1] == bytes(8)
    (stored,) = decode(first[2])[1]
    assert isinstance(stored, BlockStored)
    assert stored.token_ids == [1000] * 16
