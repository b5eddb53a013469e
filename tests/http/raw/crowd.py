"""Many clients at once: some that send slowly, some that read slowly."""

import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Self

from tests.http.raw.answers import Answer, Answers
from tests.http.raw.play import serves
from tests.http.raw.request import post
from tests.support import Router, until


class Crowd:
    """Connections that send an opening and then, on demand, more bytes again and again."""

    def __init__(self, port: int, sayings: Mapping[str, tuple[bytes, bytes]], each: int) -> None:
        self._open = ExitStack()
        self._names = [name for name in sayings for _ in range(each)]
        self._more = [sayings[name][1] for name in self._names]
        self._clients = [self._connect(port) for _ in self._names]
        self.answers = [Answers(client, head=False) for client in self._clients]
        for client, name in zip(self._clients, self._names, strict=True):
            client.sendall(sayings[name][0])

    def _connect(self, port: int) -> socket.socket:
        return self._open.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def look(self) -> None:
        """Read what has arrived, without waiting."""
        for answers in self.answers:
            answers.read(seconds=0)

    def go_on(self, said: bytes | None = None) -> None:
        """Have every client that has nothing new to read send its next bytes, or `said`."""
        for client, answers, more in zip(self._clients, self.answers, self._more, strict=True):
            if answers.read(seconds=0) or answers.closed:
                continue
            try:
                client.sendall(more if said is None else said)
            except ConnectionError:
                answers.read(seconds=0)

    def over(self) -> bool:
        """Whether all connections are closed; the clients go on until then."""
        self.go_on()
        return all(answers.closed for answers in self.answers)

    def answered(self, times: int) -> bool:
        """Whether all clients have that many answers; fail if any connection is closed."""
        self.look()
        assert not any(answers.closed for answers in self.answers)
        return all(len(answers.final) == times for answers in self.answers)

    def statuses(self) -> dict[str, set[tuple[int, ...]]]:
        """Return what clients of each name were answered: the statuses, in order."""
        found: dict[str, set[tuple[int, ...]]] = {}
        for name, answers in zip(self._names, self.answers, strict=True):
            found.setdefault(name, set()).add(tuple(answer.status for answer in answers.final))
        return found

    def last(self) -> Iterator[tuple[str, Answer]]:
        """Yield each client's name and last answer, which must be complete."""
        for name, answers in zip(self._names, self.answers, strict=True):
            assert answers.final, f"{name}: nothing was said"
            assert answers.broken is None, f"{name}: {answers.broken}"
            assert answers.final[-1].whole, f"{name}: cut off"
            yield name, answers.final[-1]


class Readers:
    """Clients that ask for long answers and read little of them."""

    def __init__(self, port: int, size: int, model: str) -> None:
        self._open = ExitStack()
        asked = post(body=b'{"model":"%b"}' % model.encode())
        self._clients = [self._ask(port, asked) for _ in range(size)]
        self.taken = [0] * size

    def _ask(self, port: int, asked: bytes) -> socket.socket:
        client = self._open.enter_context(socket.socket())
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # before connecting
        client.settimeout(30)
        client.connect(("127.0.0.1", port))
        client.sendall(asked)
        return client

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def take(self, place: int, most: int) -> bool:
        """Read at most `most` bytes; return False at the end."""
        try:
            data = self._clients[place].recv(most)
        except ConnectionError:
            return False
        self.taken[place] += len(data)
        return bool(data)

    def take_the_rest(self) -> None:
        """Read everything that is left, until the end."""
        for place in range(len(self._clients)):
            while self.take(place, 65536):
                pass


def meanwhile(router: Router, done: Callable[[], bool]) -> None:
    """Wait for `done`, and check that valid requests are served until then and afterwards."""

    def look() -> bool:
        assert serves(router.port)
        return done()

    until(look, 30)
    assert serves(router.port)
    until(router.idle)
