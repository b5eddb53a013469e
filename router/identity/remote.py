"""A worker's own tokenizer: `/tokenize`, as vLLM has it.

Asking is exact by definition and needs nothing here, but takes a round trip to a busy engine for
every prompt, and that as long as its tokenizing takes: it is for agreement, and a last resort.
"""

from array import array
from collections.abc import Mapping, Sequence

import msgspec

from router.identity.probes import PROBES
from router.inquiry import Inquiries, NoAnswer
from router.worker import Worker

PATH = "/tokenize"
#: Seconds that a worker may take for one answer.
PATIENCE_S = 5.0
#: What is answered where there is no such path, or none for us.
_NOT_SERVED = frozenset((401, 403, 404, 405, 501))
#: The worker would not take such a request either.
_REFUSED = frozenset((400, 422))


class NoTokenizer(Exception):
    """The worker has no `/tokenize` for us; says how it told us."""


class Refused(Exception):
    """The worker has one, but refuses this prompt."""


class _Tokens(msgspec.Struct):
    tokens: list[int]


_decode = msgspec.json.Decoder(_Tokens).decode


async def tokenize(
    inquiries: Inquiries,
    worker: Worker,
    model: str,
    body: Mapping[str, object],
    patience: float = PATIENCE_S,
) -> bytes:
    """Return the worker's ids of a request's body, 32 bits each, lowest byte first.

    Raises NoTokenizer, Refused, NoAnswer.
    """
    asked = msgspec.json.encode({**body, "model": model})
    answer = await inquiries.ask(worker, PATH, patience=patience, body=asked)
    if answer.status in _NOT_SERVED:
        raise NoTokenizer(f"{PATH} answered {answer.status}")
    if answer.status in _REFUSED:
        raise Refused(f"{PATH} answered {answer.status}")
    if not answer.good:
        raise NoAnswer(f"{PATH} answered {answer.status}")
    try:
        return array("I", _decode(answer.body).tokens).tobytes()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError):
        raise NoTokenizer(f"{PATH} answered something else than tokens") from None


async def answers(
    inquiries: Inquiries, worker: Worker, model: str, names: Sequence[str] = ()
) -> dict[str, bytes]:
    """Return the worker's ids of the probes of these names, or of all; of those it does not refuse.

    One after the other: a worker has better things to do. Raises NoTokenizer, NoAnswer.
    """
    found: dict[str, bytes] = {}
    for probe in PROBES:
        if not names or probe.name in names:
            try:
                found[probe.name] = await tokenize(inquiries, worker, model, probe.body)
            except Refused:
                continue
    return found
