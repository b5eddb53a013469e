"""What is known of tokens follows the fleet at once, without work for unrelated models."""

import asyncio
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import cast

import pytest

from router.fleet.fleet import Fleet
from router.fleet.inquiries import Inquiries, InquiryAnswer
from router.fleet.pool import Pool
from router.fleet.worker import Worker
from router.rendering.probes import PROBES
from router.settings.model import Settings
from router.tokenizers.registry import TokenizerRegistry
from router.tokenizers.verify import Agreement
from router.upstream.pool import Upstream
from router.upstream.timeouts import Patience
from strategies.policies.prefix_aware import PrefixAware, PrefixAwareOptions
from tests.support import until
from tests.tokenizers.asking import knows, until_known
from tests.tokenizers.conftest import MakeEngine, Start
from tests.tokenizers.engine import card


class Answers:
    """Stands in for connections: each worker's tokens start with its own number."""

    def __init__(self, numbers: dict[str, int]) -> None:
        self.numbers = numbers
        self.asked: list[str] = []
        self.at_once = self.most = 0
        self.meanwhile: Callable[[str], None] = lambda _: None

    async def ask(
        self, worker: Worker, path: str, *, patience: float, body: bytes
    ) -> InquiryAnswer:
        """Answer after all other tasks had a turn."""
        del patience
        assert path == "/tokenize"
        self.asked.append(worker.name)
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await asyncio.sleep(0)
        self.meanwhile(worker.name)
        self.at_once -= 1
        tokens = [self.numbers[worker.name], len(body) % 7]
        return InquiryAnswer(200, json.dumps({"tokens": tokens}).encode())


def serving(name: str, **roots: str) -> Worker:
    """Return a ready worker that has loaded these models."""
    upstream = Upstream("127.0.0.1", 1, tls=None, patience=Patience(1, 1, 1, 1))
    worker = Worker(name, f"http://{name}", upstream)
    worker.models = {model: card(model, root) for model, root in roots.items()}
    worker.ready = True
    return worker


SETTINGS = Settings.model_validate({"workers": ["http://x"], "tokenizer": "worker"})


def registry(workers: Iterable[Worker], answers: Answers) -> tuple[TokenizerRegistry, Pool]:
    """Return a registry that asks workers, and its fleet's only pool."""
    pool = Pool("default", ["*"], tuple(workers), PrefixAware(PrefixAwareOptions()))
    return TokenizerRegistry(Fleet([pool]), SETTINGS, cast("Inquiries", answers)), pool


def verdicts(made: TokenizerRegistry) -> dict[str, Agreement]:
    """Return the state of each worker."""
    return {name: one.verdict.state for case in made.cases for name, one in case.asked.items()}


def test_models_of_workers_are_compared_with_their_like() -> None:
    """Workers with different models are not compared with each other."""
    workers = [serving("a", llama="x/llama"), serving("b", qwen="x/qwen")]
    made, _ = registry(workers, Answers({"a": 1, "b": 2}))
    asyncio.run(made.settle())
    assert verdicts(made) == {"a": Agreement.AGREES, "b": Agreement.AGREES}
    assert all(case.trusted for case in made.cases)


def test_not_all_at_once() -> None:
    """However many models are to be verified, at most eight questions run at once."""
    workers = [serving(f"w{i}", **{f"m{i}": f"x/m{i}"}) for i in range(40)]
    answers = Answers({worker.name: 1 for worker in workers})
    made, _ = registry(workers, answers)
    asyncio.run(made.settle())
    assert answers.most == 8


def test_midnight() -> None:
    """A difference that is gone when both tokenize again does not count: the date had changed."""
    answers = Answers({"a": 1})

    def later(_: str) -> None:
        answers.numbers["a"] = 1 + (len(answers.asked) > len(PROBES))

    answers.meanwhile = later
    made, _ = registry([serving("a", m="r")], answers)
    asyncio.run(made.settle())
    assert verdicts(made) == {"a": Agreement.AGREES}
    assert len(answers.asked) == 4 * len(PROBES)


@pytest.mark.parametrize("how", ["notice", "change"])
def test_a_worker_that_goes_while_it_is_asked(how: str) -> None:
    """If a worker or its model leaves meanwhile, its different answer does not count."""
    workers = [serving("a", m="r"), serving("b", m="r")]
    answers = Answers({"a": 1, "b": 2})
    made, pool = registry(workers, answers)

    def leave(name: str) -> None:
        if name == "b" and how == "notice":
            workers[1].models = {}
            made.notice(workers[1], back=False)
        elif name == "b":
            pool.change(["*"], workers[:1])
            made.change(SETTINGS)

    answers.meanwhile = leave
    asyncio.run(made.settle())
    (case,) = made.cases
    assert (set(case.asked), case.trusted) == ({"a"}, True)


def test_an_answer_about_another_model() -> None:
    """An answer does not count if the worker came back meanwhile."""
    worker = serving("a", m="r")
    answers = Answers({"a": 1})

    async def scene() -> None:
        made, _ = registry([worker], answers)
        made.notice(worker, back=True)
        answers.meanwhile = lambda _: made.notice(worker, back=True)
        await made.round()
        assert verdicts(made) == {}
        answers.meanwhile = lambda _: None
        await made.round()
        assert verdicts(made) == {"a": Agreement.AGREES}

    asyncio.run(scene())


def test_one_model_from_several_places() -> None:
    """Its identity stays while any worker of that source is left, whichever leaves first."""
    workers = [serving("a", m="/models/a"), serving("b", m="org/a"), serving("c", m="/models/a")]
    made, pool = registry(workers, Answers(dict.fromkeys("abc", 1)))
    made.change(SETTINGS)
    assert made.cases[0].models["m"] == "/models/a"
    for left, then in (workers[1:], "/models/a"), (workers[1:2], "org/a"), (workers, "org/a"):
        pool.change(["*"], left)
        made.change(SETTINGS)
        (case,) = made.cases
        assert case.models["m"] == then


def test_adapters_come_and_go(engine: MakeEngine, start: Start, folder: Path) -> None:
    """They use their base model's tokens, so no worker is asked again."""
    worker = engine(folder)
    router = start(worker)
    until_known(router)
    asked = len(worker.tokenized)
    worker.models = [card("m", folder), card("tuned", "/lora/x", "m")]
    until_known(router, "tuned")
    worker.models = [card("m", folder)]
    until(lambda: not knows(router, "tuned"))
    assert len(worker.tokenized) == asked
