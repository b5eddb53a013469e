"""What engines and their routers tell each other within requests, and clients must not tell them.

An engine with a KV connector dials the host that such a field names, reads blocks that it was told
of, or stops: `{"kv_transfer_params": {"do_remote_prefill": true}}` alone ends vLLM 0.32
(`distributed/kv_transfer/kv_connector/v1/nixl/scheduler.py` asserts). A rank given by the client
passes by the engine's own balancer. So fields in the body are refused, and header fields dropped,
unless the operator trusts the key or the workers with them (`engine_fields`).
"""

import re
from operator import attrgetter

import msgspec

from router.api.errors import BadRequest
from router.api.messages import UNEXPECTED
from router.api.request import Request, decode_extra

#: vLLM's P2P connector reads addresses out of the id (`p2p/p2p_nccl_connector.py`,
#: `parse_request_id`), and `/v1/responses` takes it from the body: only ids that hold none.
_SAFE_ID = re.compile(rb'"[A-Za-z0-9._-]{1,128}"')
_fields = attrgetter("engine_fields", "vllm_xargs", "sampling_params", "request_id")


def refuse_engine_fields(request: Request) -> None:
    """Raise BadRequest, with the name of the field, if a request holds one of these fields."""
    if not any(_fields(request)):  # nearly all requests
        return
    if request.engine_fields:
        raise _refusal(next(iter(request.engine_fields)))
    if request.vllm_xargs:
        _refuse_inside("vllm_xargs", request.vllm_xargs)
    if request.sampling_params:
        further = _refuse_inside("sampling_params", request.sampling_params)
        if further:
            _refuse_inside("sampling_params.extra_args", further)
    if request.request_id:
        _check_id(bytes(request.request_id))


def _refuse_inside(name: str, value: msgspec.Raw) -> msgspec.Raw:
    """Do the same for the object `value`; return its `extra_args`."""
    try:
        extra = decode_extra(value)
    except msgspec.ValidationError:
        return msgspec.Raw()  # no object: the worker refuses it
    except UNEXPECTED as error:  # within a form: Python's `json` may read it
        raise BadRequest(f"`{name}` is not valid JSON: {error}.", param=name) from None
    for inner in ("kv_transfer_params", "ec_transfer_params"):
        if bytes(getattr(extra, inner)) not in {b"", b"null"}:
            raise _refusal(f"{name}.{inner}")
    return extra.extra_args


def _check_id(written: bytes) -> None:
    if written[:1] == b'"' and not _SAFE_ID.fullmatch(written):
        raise BadRequest(
            "`request_id` must be 1 to 128 letters, digits, dots, underscores and hyphens.",
            param="request_id",
        )


def _refusal(name: str) -> BadRequest:
    return BadRequest(
        f"`{name}` is for engines among themselves and is not taken from clients; leave it out."
        " (An operator can allow it: `engine_fields: true` at this key, or at the workers.)",
        param=name,
    )
