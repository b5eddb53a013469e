"""Connections passed from one process to another."""

import asyncio
import os
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import cast

import pytest

from router.http.connection import ConnectionOwner
from router.processes.balance import Commons, Passing, Posts


@pytest.fixture
def commons() -> Iterator[Commons]:
    """The shared memory and sockets of two processes."""
    found = Commons(2)
    yield found
    found.close()


def inherited(posts: Posts) -> Posts:
    """Return duplicates of the descriptors, as a child process would inherit them."""
    return Posts(os.dup(posts.memory), os.dup(posts.inbox), tuple(map(os.dup, posts.outboxes)))


Process = Callable[[int], Passing]


@pytest.fixture
def process(commons: Commons) -> Iterator[Process]:
    """A function that makes the process at a place, ready to take connections."""
    with ExitStack() as stack:

        def make(place: int) -> Passing:
            found = Passing(inherited(commons.posts(place)), place)
            stack.callback(found.close)
            found.shares.begin()
            return found

        yield make


def test_a_connection_arrives(process: Process) -> None:
    """The connection arrives intact, with the bytes that its client has already sent."""
    here = process(0)
    there = process(1)
    here.shares.opened()
    client, accepted = socket.socketpair()
    client.sendall(b"hello")
    assert here.passes(accepted.fileno())
    accepted.close()
    _, (descriptor,), _, _ = socket.recv_fds(there._inbox, 1, 1)
    with client, socket.socket(fileno=descriptor) as arrived:
        assert arrived.recv(5) == b"hello"


def test_nobody_takes_what_is_passed(process: Process) -> None:
    """If nobody receives, passing stops once the socket is full, and only sent ones are counted."""
    here = process(0)
    process(1)
    here.shares.opened(100_000)
    client, accepted = socket.socketpair()
    with client, accepted:
        passed = 0
        while here.passes(accepted.fileno()):
            passed += 1
            assert passed < 100_000
        assert here.shares.freest() == 1
        # Sends that failed are not counted as on their way.
        here.shares.opened(passed + passed // 8 - 100_000)
        assert here.shares.freest() is None
        here.shares.opened()
        assert here.shares.freest() == 1


def test_a_process_that_has_ended_gets_none(process: Process, commons: Commons) -> None:
    """Nothing is passed to a process that has not begun, or that was shut after its end."""
    here = process(0)
    here.shares.opened()
    client, accepted = socket.socketpair()
    with client, accepted:
        assert not here.passes(accepted.fileno())
        process(1)
        assert here.passes(accepted.fileno())
        commons.shut(1)
        here.shares.opened(10)
        assert not here.passes(accepted.fileno())


def test_one_that_was_shut_gets_some_again(process: Process, commons: Commons) -> None:
    """A shut process is passed some again, but not before it has begun and not after its end."""

    async def run() -> None:
        here, there = process(0), process(1)
        here.shares.opened(10)
        commons.shut(1)
        there.again()
        assert here.shares.freest() is None
        there.begin(cast("ConnectionOwner", None), asyncio.get_running_loop())
        there.shares.opened(4)
        commons.shut(1)
        there.shares.opened(5)
        assert here.shares.freest() is None
        there.again()
        assert here.shares.freest() is None  # not with 9 there, and one to pass
        there.shares.opened(-1)
        assert here.shares.freest() == 1
        await there.end()
        there.again()
        assert here.shares.freest() is None

    asyncio.run(run())


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Allow this process to open no more descriptors for a while."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as lowest:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest.fileno(), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_process_without_descriptors(process: Process) -> None:
    """What it cannot take is lost, and no longer counts as on its way to it."""

    async def run() -> None:
        here, there = process(0), process(1)
        there.begin(cast("ConnectionOwner", None), asyncio.get_running_loop())
        here.shares.opened(2)
        client, accepted = socket.socketpair()
        with client:
            assert here.passes(accepted.fileno())
            assert here.passes(accepted.fileno())
            assert here.shares.freest() is None
            accepted.close()
            with no_descriptor_left():
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            assert client.recv(1) == b""
        assert here.shares.freest() == 1
        await there.end()

    asyncio.run(run())
