"""Log lines for a reader that hangs."""

import io
import logging
import os
import threading
from collections.abc import Iterator
from typing import TextIO

import pytest

from router.runtime.logs import MAX_WRITE_CHARS, NonBlockingHandler


@pytest.fixture
def pipe() -> Iterator[tuple[int, TextIO]]:
    """Both ends of a pipe."""
    reader, writer = os.pipe()
    with os.fdopen(writer, "w", encoding="utf-8") as stream:
        yield reader, stream
    os.close(reader)


def say(handler: NonBlockingHandler, *lines: str) -> None:
    """Log these lines; fail if that does not end."""

    def speak() -> None:
        for line in lines:
            handler.emit(logging.LogRecord("n", logging.INFO, "f", 0, line, None, None))

    speaking = threading.Thread(target=speak, daemon=True)
    speaking.start()
    speaking.join(20)
    assert not speaking.is_alive()


@pytest.mark.parametrize("length", [50, MAX_WRITE_CHARS * 7])
def test_a_full_pipe(pipe: tuple[int, TextIO], length: int) -> None:
    """Lines that it does not take are dropped and counted, and the next ones are written."""
    reader, stream = pipe
    handler = NonBlockingHandler(stream)
    lines = [f"{number} {'ü' * length}" for number in range(200_000 // length)]
    say(handler, *lines)
    told = os.read(reader, 1 << 20)
    say(handler, "again", "and again")
    told += os.read(reader, 1 << 20)
    *whole, count, again, then = told.decode().splitlines()
    written = sum(one in lines for one in whole)
    assert written >= 3
    assert count == f"{len(lines) - written} lines are missing here: nobody read the log"
    assert (again, then) == ("again", "and again")


def test_a_stream_that_is_no_file() -> None:
    """It gets all lines."""
    stream = io.StringIO()
    say(NonBlockingHandler(stream), "one", "two " * MAX_WRITE_CHARS)
    assert stream.getvalue() == "one\n" + "two " * MAX_WRITE_CHARS + "\n"
