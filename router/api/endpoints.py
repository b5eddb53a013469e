"""The paths that are served, and what the router has to know of each inference endpoint."""

from dataclasses import dataclass
from enum import Flag, StrEnum, auto
from typing import Final

#: What health probes ask; `/ping` is SageMaker's for containers.
PROBES: Final = frozenset(("/health", "/health/live", "/health/ready", "/ping"))
#: Served on every listener without a key, as probes have none. `*` is the target of `OPTIONS *`.
OPEN_PATHS: Final = PROBES | {"*"}
MODELS: Final = "/v1/models"
SESSIONS: Final = "/sessions"
#: `?path=` names the endpoint that the body is meant for.
EXPLAIN: Final = "/explain"
#: What SageMaker's platform calls on a container.
INVOCATIONS: Final = "/invocations"
#: Size limit in bytes of a body on paths that take no prompt.
SMALL_BODY: Final = 64 << 10


class Prompted(StrEnum):
    """Where a request has its prompt, if it has one that a KV cache could hold."""

    CHAT = "CHAT"
    COMPLETION = "COMPLETION"
    INPUT = "INPUT"
    RESPONSES = "RESPONSES"
    MESSAGES = "MESSAGES"
    NOTHING = "NOTHING"


#: The members, for what runs with every request: to reach them through the class takes ten times as
#: long before Python 3.12.
CHAT: Final = Prompted.CHAT
COMPLETION: Final = Prompted.COMPLETION
INPUT: Final = Prompted.INPUT
RESPONSES: Final = Prompted.RESPONSES
MESSAGES: Final = Prompted.MESSAGES
NOTHING: Final = Prompted.NOTHING


class Salted(StrEnum):
    """How an engine can keep what an endpoint computes apart from other clients' prompts."""

    YES = "YES"
    """By `cache_salt`."""
    CANNOT = "CANNOT"
    """It has no field for that."""
    NEEDLESS = "NEEDLESS"
    """Nothing is computed that another prompt could find in a KV cache."""


class Engines(Flag):
    """Which engines serve a path."""

    VLLM = auto()
    SGLANG = auto()
    BOTH = VLLM | SGLANG


_SGLANG, _BOTH = Engines.SGLANG, Engines.BOTH
#: Where the prompt is if it is not in messages, unless the endpoint says otherwise.
_SOURCES = {Prompted.COMPLETION: ("prompt",), Prompted.INPUT: ("input",)}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One inference path, relayed to workers."""

    path: str
    prompted: Prompted
    answers: bool = False
    """Whether the answer is generated token by token, so that it takes up KV cache."""
    form: bool = False
    """The body is a multipart form, not JSON."""
    engines: Engines = Engines.VLLM
    salted: Salted = Salted.YES
    native: bool = False
    """The body has another form than OpenAI's (`native.py`)."""
    fields: tuple[str, ...] = ()
    """Names that the prompt may have instead; of several, the first that is given counts."""
    batched: bool = False
    """`messages` are conversations, each answered by itself."""
    exact: bool = True
    """Whether the engine makes a prompt's tokens as on the endpoints of OpenAI and Anthropic."""
    events: bool = True
    """Its streams are server-sent events."""
    streams: bool = False
    """It streams unless the request says that it should not."""
    after_system: bool = False
    """`system` precedes the prompt, as in Ollama's API."""

    @property
    def sources(self) -> tuple[str, ...]:
        """The names that a prompt which is not in messages may have."""
        return self.fields or _SOURCES.get(self.prompted, ())


def _computes_nothing(path: str, engines: Engines = Engines.VLLM) -> Endpoint:
    """Return an endpoint that works on texts and tokens alone, and not on the GPU."""
    return Endpoint(path, NOTHING, engines=engines, salted=Salted.NEEDLESS)


def _ollama(path: str, prompted: Prompted, *, after_system: bool = False) -> Endpoint:
    """Return an endpoint of Ollama's API, as SGLang serves it."""
    return Endpoint(
        path,
        prompted,
        answers=True,
        engines=_SGLANG,
        salted=Salted.CANNOT,
        native=True,
        exact=False,
        events=False,
        streams=True,
        after_system=after_system,
    )


def _audio(path: str, engines: Engines = Engines.VLLM) -> Endpoint:
    """Return an endpoint that takes a form with an audio file."""
    return Endpoint(path, NOTHING, answers=True, form=True, engines=engines, salted=Salted.NEEDLESS)


_TEXT_OR_IDS = ("text", "input_ids")
_SALTLESS = Salted.CANNOT
#: All inference endpoints of vLLM (vllm/entrypoints) and SGLang (srt/entrypoints/http_server.py),
#: by path, but for websockets and for paths that a platform calls on a container.
ENDPOINTS = {
    endpoint.path: endpoint
    for endpoint in (
        Endpoint("/v1/chat/completions", CHAT, answers=True, engines=_BOTH),
        Endpoint("/v1/chat/completions/batch", CHAT, answers=True, native=True, batched=True),
        Endpoint("/v1/completions", COMPLETION, answers=True, engines=_BOTH),
        Endpoint("/v1/responses", RESPONSES, answers=True, engines=_BOTH),
        Endpoint("/v1/messages", MESSAGES, answers=True, engines=_BOTH),
        Endpoint(
            "/inference/v1/generate", COMPLETION, native=True, fields=("token_ids",), answers=True
        ),
        Endpoint(
            "/generate", COMPLETION, native=True, fields=_TEXT_OR_IDS, engines=_SGLANG, answers=True
        ),
        Endpoint("/cohere/v2/chat", CHAT, answers=True, salted=_SALTLESS, exact=False),
        _ollama("/api/chat", CHAT),
        _ollama("/api/generate", COMPLETION, after_system=True),
        Endpoint("/v1/embeddings", INPUT, engines=_BOTH),
        Endpoint("/v2/embed", INPUT, native=True, fields=("texts",), salted=_SALTLESS),
        Endpoint(
            "/encode", INPUT, native=True, fields=_TEXT_OR_IDS, engines=_SGLANG, salted=_SALTLESS
        ),
        Endpoint("/pooling", INPUT),
        Endpoint("/classify", INPUT, native=True, fields=("input", *_TEXT_OR_IDS), engines=_BOTH),
        Endpoint("/v1/classify", INPUT, engines=_SGLANG, salted=_SALTLESS),
        Endpoint("/v1/rerank", NOTHING, engines=_BOTH),
        Endpoint("/rerank", NOTHING),
        Endpoint("/v2/rerank", NOTHING),
        Endpoint("/v1/score", NOTHING, engines=_BOTH),
        Endpoint("/score", NOTHING),
        Endpoint("/generative_scoring", NOTHING),
        Endpoint("/v1/systemone", NOTHING, engines=_BOTH, native=True),
        Endpoint("/v1/decisions", NOTHING, engines=_SGLANG, salted=_SALTLESS, native=True),
        _audio("/v1/audio/transcriptions", _BOTH),
        _audio("/v1/audio/translations"),
        _computes_nothing("/v1/messages/count_tokens", _BOTH),
        _computes_nothing("/tokenize", _BOTH),
        _computes_nothing("/detokenize", _BOTH),
        _computes_nothing("/v1/tokenize", _SGLANG),
        _computes_nothing("/v1/detokenize", _SGLANG),
        _computes_nothing("/v1/chat/completions/render"),
        _computes_nothing("/v1/completions/render"),
        _computes_nothing("/v1/responses/render"),
        _computes_nothing("/v1/messages/render"),
        _computes_nothing("/cohere/v2/chat/render"),
        _computes_nothing("/v1/chat/completions/derender"),
        _computes_nothing("/v1/completions/derender"),
    )
}
