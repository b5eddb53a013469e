"""The command: both implementations measured on the same bodies, and the tables."""

import json
import subprocess
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from timeit import repeat
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.prompts.implementations import PlainKeys, PromptCost, RouterKeys, cost, hashed
from benchmarks.prompts.model import TEMPLATES, Texts, body, model_folder
from strategies.prefix.block_keys import chain

PROMPT_TOKENS = (500, 8_000, 32_000, 128_000)
#: Approximate tokens that the router processes per round.
_ROUND_TOKENS = 400_000
#: Most bodies of a round, and most of them that the slower, plain implementation gets.
_MAX_BODIES, _MAX_PLAIN_BODIES = 100, 10
#: Tokens added by a turn.
_TURN_TOKENS = 300

#: Prints the microseconds in which ai_dynamo_runtime hashes the blocks of the token ids on stdin.
_PEER = """
import json, sys, timeit
from dynamo.llm import compute_block_hash_for_seq
ids = json.load(sys.stdin)
number = max(1, 200_000 // len(ids))
work = lambda: compute_block_hash_for_seq(ids, 16)
print(min(timeit.repeat(work, number=number, repeat=5)) / number * 1e6)
"""

_err = Console(stderr=True, highlight=False, soft_wrap=True)


@dataclass(frozen=True, slots=True)
class PromptCosts:
    """Microseconds per request, medians over all rounds."""

    template: str
    tokens: int
    kind: str
    router: PromptCost
    plain: PromptCost

    @property
    def ratio(self) -> float:
        """Return the CPU time of the plain implementation, as a multiple of the router's."""
        return self.plain.cpu / self.router.cpu


@dataclass(frozen=True, slots=True)
class Hashing:
    """Microseconds to hash the blocks of a prompt whose token ids are known."""

    tokens: int
    router: float
    plain: float
    peer: float | None


class Bodies(NamedTuple):
    """The bodies of one kind for one round."""

    kind: str
    measured: Sequence[bytes]


def main(
    *,
    size: Annotated[
        list[int] | None, typer.Option(min=300, help="Tokens of a prompt; repeat for more.")
    ] = None,
    template: Annotated[
        list[str] | None, typer.Option(help=f"Of {', '.join(TEMPLATES)}; repeat for more.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="A model's folder, instead of those that are made.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Of each; their medians are shown.")] = 5,
    peer_python: Annotated[
        Path | None, typer.Option(help="A Python that has ai_dynamo_runtime.")
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the rows here.")] = None,
) -> None:
    """Measure and print the tables."""
    names = [model.name] if model else template or list(TEMPLATES)
    if not (model or set(names) <= set(TEMPLATES)):
        raise typer.BadParameter(f"a template is one of {', '.join(TEMPLATES)}")
    rows: list[PromptCosts] = []
    steps: list[tuple[str, dict[str, float]]] = []
    hashing: list[Hashing] = []
    for name in names:
        with _err.status(f"{name}: making the model's folder, if it is not there"):
            both = _Both(name, model or model_folder(name))
        for tokens in size or PROMPT_TOKENS:
            with _err.status(f"{name}: {tokens:,} tokens"):
                rows += both.rows(tokens, rounds)
                steps += both.steps(tokens)
                if name == names[0]:
                    hashing.append(both.hashing(tokens, peer_python))
    for table in (_table(rows), _step_table(steps), _hashing_table(hashing)):
        Console(width=120).print(table)
    if json_file is not None:
        content = {"rows": list(map(asdict, rows)), "hashing": list(map(asdict, hashing))}
        json_file.write_text(json.dumps({**content, "steps": steps}, indent=1) + "\n")


class _Both:
    """Both implementations, for one model's folder."""

    def __init__(self, name: str, path: Path) -> None:
        self._name = name
        self._router, self._plain = RouterKeys(path), PlainKeys(path)
        tokenizer = self._plain.tokenizer
        self._texts = Texts(1, lambda text: len(tokenizer.encode(text).ids))
        _err.print(
            f"{name}: {tokenizer.get_vocab_size():,} tokens; {self._router.tokenizer.name},"
            f" as {self._router.why}"
        )
        for _ in range(10):  # so that both have seen most words
            conversation = body(self._texts.conversation(20_000))
            if self._router.prompt(conversation).tokens != len(self._plain.ids(conversation)):
                raise SystemExit("the two implementations give different tokens")

    def rows(self, tokens: int, rounds: int) -> list[PromptCosts]:
        """Measure both implementations for prompts of one size."""
        costs: dict[str, tuple[list[PromptCost], list[PromptCost]]] = {}
        length = len(self._plain.ids(body(self._texts.conversation(tokens))))
        for _ in range(rounds):
            for bodies in self._bodies(tokens):
                router, plain = costs.setdefault(bodies.kind, ([], []))
                router.append(cost(self._router.prompt, bodies.measured))
                plain.append(cost(self._plain.keys, bodies.measured[:_MAX_PLAIN_BODIES]))
        return [
            PromptCosts(self._name, length, kind, _median(router), _median(plain))
            for kind, (router, plain) in costs.items()
        ]

    def steps(self, tokens: int) -> list[tuple[str, dict[str, float]]]:
        """Return the cost of each of the router's steps, for cold and growing prompts."""
        medians = []
        for bodies in self._bodies(tokens):
            if bodies.kind != "repeated":
                each = [self._router.steps(spans) for spans in bodies.measured]
                middle = {step: median(spans[step] for spans in each) for step in each[0]}
                medians.append((f"{self._name}, {tokens:,}, {bodies.kind}", middle))
        return medians

    def hashing(self, tokens: int, peer: Path | None) -> Hashing:
        """Measure the hashing of blocks alone."""
        ids = self._plain.ids(body(self._texts.conversation(tokens)))
        packed = array("I", ids).tobytes()
        number = max(1, 500_000 // len(ids))
        router = min(repeat(lambda: chain(1, packed), number=number, repeat=5)) / number * 1e6
        plain = min(repeat(lambda: hashed(ids), number=1, repeat=5)) * 1e6
        return Hashing(len(ids), router, plain, None if peer is None else _peer(peer, ids))

    def _bodies(self, tokens: int) -> Iterator[Bodies]:
        """Yield the bodies of each kind, after the router has seen earlier turns where needed."""
        texts = self._texts
        count = min(max(_ROUND_TOKENS // tokens, 3), _MAX_BODIES)
        cold = [body(texts.conversation(tokens)) for _ in range(count)]
        yield Bodies("cold", cold)
        before = [
            texts.conversation(max(tokens - _TURN_TOKENS, _TURN_TOKENS)) for _ in range(count)
        ]
        for messages in before:
            self._router.prompt(body(messages))
        yield Bodies("growing", [body(texts.turn(messages)) for messages in before])
        yield Bodies("repeated", [cold[-1]] * count)


def _median(costs: Sequence[PromptCost]) -> PromptCost:
    return PromptCost(median(spent.cpu for spent in costs), median(spent.wall for spent in costs))


def _peer(python: Path, ids: list[int]) -> float | None:
    """Measure the hashing in the peer's Python environment; None if that fails."""
    done = subprocess.run(
        [python, "-c", _PEER], input=json.dumps(ids), capture_output=True, text=True, check=False
    )
    with suppress(ValueError):
        return float(done.stdout)
    _err.print(f"{python} cannot: {done.stderr.strip()[-300:]}", markup=False)
    return None


def _table(rows: Sequence[PromptCosts]) -> Table:
    table = Table(title="From body to keys, CPU µs (all threads) and ms by the clock")
    for heading in ("template", "tokens", "", "CPU µs", "ms", "tokenizers", "ms", "times"):
        table.add_column(heading, justify="right" if heading not in ("template", "") else "left")
    for row in rows:
        table.add_row(
            *(row.template, f"{row.tokens:,}", row.kind),
            *(f"{row.router.cpu:,.0f}", f"{row.router.wall / 1e3:.2f}"),
            *(f"{row.plain.cpu:,.0f}", f"{row.plain.wall / 1e3:.2f}", f"{row.ratio:.1f}"),
            end_section=row.kind == "repeated",
        )
    return table


def _step_table(steps: Sequence[tuple[str, dict[str, float]]]) -> Table:
    table = Table(title="Where it goes, CPU µs, medians")
    table.add_column("")
    for step in steps[0][1]:
        table.add_column(step, justify="right")
    for name, costs in steps:
        table.add_row(name, *(f"{microseconds:,.0f}" for microseconds in costs.values()))
    return table


def _hashing_table(hashing: Sequence[Hashing]) -> Table:
    table = Table(title="Keys alone, µs")
    for heading in ("tokens", "router", "plain", "ai_dynamo_runtime"):
        table.add_column(heading, justify="right")
    for row in hashing:
        peer = "-" if row.peer is None else f"{row.peer:,.0f}"
        table.add_row(f"{row.tokens:,}", f"{row.router:,.0f}", f"{row.plain:,.0f}", peer)
    return table


if __name__ == "__main__":
    typer.run(main)
