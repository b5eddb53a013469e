"""Two ways to turn a request's body into block keys: the router's, and a plain one."""

import gc
import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from time import perf_counter, process_time
from typing import NamedTuple

import jinja2
import msgspec
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from benchmarks.prompts.model import MODEL
from router.api.endpoints import ENDPOINTS
from router.api.request import parse
from router.prompt.prompts import KnownModel, Prompts
from router.rendering.chat import conversation
from router.rendering.folder import read_folder
from router.rendering.messages import read_messages
from router.rendering.renderer import TemplateRenderer
from router.rendering.template import ChatTemplate
from router.rendering.tokenizer import load
from router.rendering.tokens import PromptTokenizer
from strategies.api import Prompt
from strategies.prefix.block_keys import chain

CHAT = ENDPOINTS["/v1/chat/completions"]
#: Tokens per block for the plain implementation, as is the default of engines.
BLOCK_TOKENS = 16
_decode = msgspec.json.Decoder().decode


class PromptCost(NamedTuple):
    """Microseconds per request."""

    cpu: float
    """CPU time of all threads."""
    wall: float


def cost(work: Callable[[bytes], object], bodies: Sequence[bytes]) -> PromptCost:
    """Return the mean cost over all bodies, each processed once.

    As in the router, existing objects are hidden from the garbage collector (`gc.freeze`).
    """
    gc.collect()
    gc.freeze()
    wall, cpu = perf_counter(), process_time()
    for body in bodies:
        work(body)
    cpu, wall = process_time() - cpu, perf_counter() - wall
    gc.unfreeze()
    return PromptCost(cpu / len(bodies) * 1e6, wall / len(bodies) * 1e6)


class RouterKeys:
    """The router's implementation."""

    def __init__(self, path: Path) -> None:
        folder = read_folder(path)
        self.tokenizer, self.why = load(path)
        self._template = ChatTemplate(folder.template(tools=False) or "", folder.special_tokens)
        self._prompts = Prompts()
        self._prompts.known = {
            MODEL: KnownModel(MODEL, PromptTokenizer(TemplateRenderer(folder, self.tokenizer)))
        }

    def prompt(self, body: bytes) -> Prompt:
        """Return the prompt with its keys."""
        return self._prompts.prompt(CHAT, parse(CHAT, body, b""), body)

    def steps(self, body: bytes) -> dict[str, float]:
        """Run the steps one by one; return the CPU microseconds of each."""
        marks = [process_time()]
        parse(CHAT, body, b"")
        marks.append(process_time())
        request = _decode(body)
        marks.append(process_time())
        messages = conversation(
            read_messages(request["messages"]), parts=self._template.wants_parts
        )
        marks.append(process_time())
        text = self._template.render(messages)
        marks.append(process_time())
        ids = self.tokenizer.encode(text, special=False)
        marks.append(process_time())
        chain(1, ids)
        marks.append(process_time())
        names = ("fields for routing", "whole body", "messages", "template", "tokens", "keys")
        spans = pairwise(marks)
        return {name: (end - start) * 1e6 for name, (start, end) in zip(names, spans, strict=True)}


class PlainKeys:
    """The obvious implementation: json, Jinja, tokenizers, and a Python hash per block."""

    def __init__(self, path: Path) -> None:
        folder = read_folder(path)
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        self._template: jinja2.Template = environment.from_string(
            folder.template(tools=False) or ""
        )
        self._special_tokens = folder.special_tokens
        self.tokenizer: Tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))

    def ids(self, body: bytes) -> list[int]:
        """Return the token ids."""
        text = self._template.render(
            messages=json.loads(body)["messages"],
            add_generation_prompt=True,
            **self._special_tokens,
        )
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def keys(self, body: bytes) -> list[int]:
        """Return the block keys."""
        return hashed(self.ids(body))


def hashed(ids: Sequence[int]) -> list[int]:
    """Return a chained hash of every full block."""
    key, keys = 0, []
    for start in range(0, len(ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        key = hash((key, *ids[start : start + BLOCK_TOKENS]))
        keys.append(key)
    return keys
