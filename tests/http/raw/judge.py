"""Compares what happened with what a row allows, and says what is wrong."""

import json
from datetime import UTC, datetime

import httptools

from router.api.endpoints import ENDPOINTS
from tests.http.raw.answers import Answer
from tests.http.raw.play import Seen
from tests.http.raw.row import End, Outcome, Row

#: Hop-by-hop fields (RFC 9110 section 7.6.1), and those that the router itself handles or refuses:
#: none of them may reach a worker.
OURS_ALONE = {
    b"connection",
    b"expect",
    b"http2-settings",
    b"keep-alive",
    b"proxy-authorization",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
}


class Reached:
    """A request as the worker got it, parsed by httptools."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.headers: list[tuple[bytes, bytes]] = []
        self.target = b""
        self.body = b""
        self.messages = 0
        parser = httptools.HttpRequestParser(self)
        parser.feed_data(data)
        self.method: bytes = parser.get_method()

    def on_url(self, url: bytes) -> None:
        """Append a piece of the target."""
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Append a header field."""
        self.headers.append((name.lower(), value))

    def on_body(self, data: bytes) -> None:
        """Append a piece of the body."""
        self.body += data

    def on_message_complete(self) -> None:
        """Count a complete request."""
        self.messages += 1

    def values(self, name: bytes) -> list[bytes]:
        """All values of a header field."""
        return [value for other, value in self.headers if other == name]


def complaints(row: Row, seen: Seen, requests: list[bytes]) -> list[str]:
    """List everything that is wrong; empty if nothing is."""
    found: list[str] = []
    reached = [Reached(data) for data in requests]
    bodies = [request.body for request in reached]
    if not any(_fits(outcome, seen, bodies) for outcome in row.allowed):
        statuses = [answer.status for answer in seen.answers]
        end = "kept" if seen.kept else "closed"
        found.append(f"answers {statuses}, {end}, {bodies!r} to the worker: not as {row.rfc}")
    if seen.broken is not None:
        found.append(f"an answer is no HTTP: {seen.broken}")
    if seen.early:
        found.append("it did not wait for the whole request")
    if len(seen.interims) not in row.interims or {a.status for a in seen.interims} - {100}:
        found.append(f"interim answers {[answer.status for answer in seen.interims]}")
    ids = [value for answer in seen.answers for value in answer.values(b"x-request-id")]
    if row.ids and ids != list(row.ids):
        found.append(f"answers in the order {ids}")
    for request in reached:
        found += _request_complaints(row, request)
    for answer in seen.answers:
        found += _answer_complaints(row, answer)
    if seen.answers and not seen.kept and not says_close(seen.answers[-1]):
        found.append("closed without saying so (RFC 9112 section 9.6)")
    return found


def _fits(outcome: Outcome, seen: Seen, bodies: list[bytes]) -> bool:
    return (
        len(seen.answers) == len(outcome.answers)
        and all(
            answer.status in allowed
            for answer, allowed in zip(seen.answers, outcome.answers, strict=True)
        )
        and bodies == list(outcome.bodies)
        and outcome.end in {End.EITHER, End.KEPT if seen.kept else End.CLOSED}
    )


def _request_complaints(row: Row, request: Reached) -> list[str]:
    found = []
    if request.messages != 1:
        found.append(f"{request.messages} requests in one to the worker: {request.data!r}")
    if request.method != b"POST" or request.target.split(b"?")[0].decode() not in ENDPOINTS:
        found.append(f"the worker was asked to {request.method!r} {request.target!r}")
    if request.values(b"content-length") != [b"%d" % len(request.body)]:
        found.append(f"the worker was told the lengths {request.values(b'content-length')}")
    if len(request.values(b"host")) != 1:
        found.append(f"the worker was told the hosts {request.values(b'host')}")
    found += [
        f"the worker got {name!r}, which ends here" for name in OURS_ALONE if request.values(name)
    ]
    found += [
        f"the worker got {request.headers}, and not {pair} once"
        for pair in row.carried
        if request.headers.count(pair) != 1
    ]
    head = request.data[: len(request.data) - len(request.body)].lower()
    found += [f"the worker got {word!r}" for word in row.never if word in head]
    return found


def _answer_complaints(row: Row, answer: Answer) -> list[str]:
    found = []
    if not answer.whole:
        found.append(f"the answer {answer.status} was cut off")
    told = b"".join(b"%b: %b\r\n" % pair for pair in answer.headers) + answer.body
    found += [f"an answer says {word!r}" for word in row.never if word in told]
    if not _is_date(answer.values(b"date")):
        found.append(f"Date is {answer.values(b'date')} (RFC 9110 section 6.6.1)")
    if answer.values(b"server"):
        found.append(f"the router tells what it is: {answer.values(b'server')}")
    if answer.body and not answer.values(b"content-type"):
        found.append("content without a type (RFC 9110 section 8.3)")
    if answer.status == 405 and not answer.values(b"allow"):
        found.append("405 without Allow (RFC 9110 section 15.5.6)")
    if answer.status >= 400 and not row.head and not is_error(answer):
        found.append(f"{answer.status} is not in OpenAI's shape: {answer.body[:200]!r}")
    return found


def is_error(answer: Answer) -> bool:
    """Whether an answer is an error in the format that OpenAI's clients expect."""
    try:
        error = json.loads(answer.body)["error"]
    except (ValueError, TypeError, LookupError):
        return False
    return (
        answer.values(b"content-type") == [b"application/json"]
        and set(error) == {"message", "type", "param", "code"}
        and bool(error["message"])
    )


def _is_date(values: list[bytes]) -> bool:
    """Whether there is exactly one date, in the preferred format (RFC 9110 section 5.6.7)."""
    try:
        (value,) = values
        datetime.strptime(value.decode(), "%a, %d %b %Y %H:%M:%S GMT").replace(tzinfo=UTC)
    except ValueError:
        return False
    return True


def says_close(answer: Answer) -> bool:
    return b"close" in b",".join(answer.values(b"connection")).lower()
