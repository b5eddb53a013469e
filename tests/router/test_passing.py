"""Connections on their way from one process to another."""

import asyncio
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import cast

import pytest

from router.passing import Commons, Passing, Posts
from router.protocol import House


@pytest.fixture
def commons() -> Iterator[Commons]:
    """Of two processes."""
    found = Commons(2)
    yield found
    found.close()


def inherited(posts: Posts) -> Posts:
    """The same descriptors as another process would have them."""
    return Posts(os.dup(posts.memory), os.dup(posts.inbox), tuple(map(os.dup, posts.outboxes)))


Process = Callable[[int], Passing]


@pytest.fixture
def process(commons: Commons) -> Iterator[Process]:
    """Makes one, at a place, that takes connections."""
    with ExitStack() as stack:

        def make(place: int) -> Passing:
            found = Passing(inherited(commons.posts(place)), place)
            stack.callback(found.close)
            found.shares.begin()
            return found

        yield make


def test_a_connection_arrives(process: Process) -> None:
    """As it was, with what its client has sent already."""
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
    """Then it stays; one that hangs is not given all of them in the end."""
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
        # What could not be sent is not counted as if it were on its way.
        here.shares.opened(passed + passed // 8 - 100_000)
        assert here.shares.freest() is None
        here.shares.opened()
        assert here.shares.freest() == 1


def test_a_process_that_has_ended_gets_none(process: Process, commons: Commons) -> None:
    """Before another one begins in its place, and before the first one has."""
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
    """With what it has open by then; before it takes any, and after its end, it gets none."""

    async def run() -> None:
        here, there = process(0), process(1)
        here.shares.opened(10)
        commons.shut(1)
        there.again()
        assert here.shares.freest() is None
        there.begin(cast("House", None), asyncio.get_running_loop())
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
