"""A worker's own tokenizer: `/tokenize`, as in vLLM.

Its answer is exact by definition and needs nothing installed here. But it costs every prompt a
round trip to a busy engine plus its time to tokenize, so it is used to check agreement and as a
last resort.
"""

from array import array
from collections.abc import Mapping, Sequence

import msgspec

from router.fleet.worker import Worker
from router.tokenizers.probe import PROBES
from router.upstream.client import Inquiries, NoAnswer

PATH = "/tokenize"
#: Seconds that a worker may take for one answer.
PATIENCE_S = 5.0
#: Status codes if there is no such path, or access to it is denied.
_NOT_SERVED = frozenset((401, 403, 404, 405, 501))
#: Status codes of a prompt that the worker would refuse as a real request too.
_REFUSED = frozenset((400, 422))


class NoTokenizer(Exception):
    """The worker has no `/tokenize` for us; the message says how it answered."""


class Refused(Exception):
    """The worker has `/tokenize`, but refuses this prompt."""


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
    """Return the worker's ids for a request's body, 32 bits each, little-endian.

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
    """Return the worker's ids for the named probes, or all; without those that it refuses.

    Probes are sent one at a time, to keep the load on the worker low. Raises NoTokenizer, NoAnswer.
    """
    found: dict[str, bytes] = {}
    for probe in PROBES:
        if not names or probe.name in names:
            try:
                found[probe.name] = await tokenize(inquiries, worker, model, probe.body)
            except Refused:
                continue
    return found
