"""Which pool answers for a model, which of its workers may, and what is booked on them."""

import itertools
from collections.abc import Callable, Sequence
from math import inf, nan
from time import monotonic

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.api.errors import BadRequest, NoWorker, UnknownModel
from router.fleet.fleet import MAX_COMPARED_NAMES, MAX_ROUTES, Fleet
from router.fleet.pool import Pool
from router.fleet.worker import Availability, ProbeState, Worker
from strategies.api import Candidate, Cost, NoOptions, Prompt, WorkerView
from strategies.policies.least_load import LeastLoad
from strategies.registry import make
from tests.fleet import fleets

PROMPT = Prompt("m", 1000, (1, 2, 3), answer_tokens=100, stream=True)
_numbers = itertools.count(1)


def worker(*models: str, state: ProbeState = ProbeState.READY) -> Worker:
    """Build a worker that serves these models."""
    made = fleets.worker(f"w{next(_numbers)}")
    made.models = {model: {"id": model} for model in models}
    made.become(state, "as the test has it")
    return made


def pool(name: str, *patterns: str, workers: Sequence[Worker] = ()) -> Pool:
    """Build a pool for these model patterns."""
    return Pool(name, patterns, workers or [worker("m")], make("roundrobin", {}))


def serving(model: str, *pools: Pool) -> str:
    """Return the name of the pool that gets requests for a model, or `none`."""
    fleet = Fleet(pools)
    for each in pools:
        for one in each.workers:
            one.models = {model: {"id": model}}
    try:
        return fleet.route(model)[0].name
    except UnknownModel:
        assert model not in fleet.models()
        return "none"


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("meta/llama-70b", "exact"),
        ("meta/llama-70b-chat", "longer"),
        ("meta/llama", "longer"),
        ("meta/llam", "shorter"),
        ("meta/", "shorter"),
        ("meta", "rest"),
        ("META/llama", "rest"),
        ("\0", "rest"),
        ("日本", "rest"),
    ],
)
def test_patterns(model: str, expected: str) -> None:
    """An exact name beats a prefix, a longer prefix a shorter one, and `*` takes the rest."""
    pools = [
        pool("rest", "*"),
        pool("shorter", "meta/*"),
        pool("exact", "meta/llama-70b"),
        pool("longer", "meta/llama*"),
    ]
    assert serving(model, *pools) == expected


def test_without_a_rest() -> None:
    """A model that no pattern matches is unknown, even if a worker serves it."""
    assert serving("other", pool("a", "meta/*"), pool("b", "exact")) == "none"
    assert serving("exact", pool("a", "meta/*"), pool("b", "exact")) == "b"
    assert serving("exactly", pool("a", "meta/*"), pool("b", "exact")) == "none"


NAMES = st.text("ab/", min_size=1, max_size=5)


@given(st.sets(NAMES, max_size=6), st.sets(st.text("ab/", max_size=4), max_size=6), NAMES)
def test_patterns_like_a_plain_search(exact: set[str], prefixes: set[str], model: str) -> None:
    """The trie finds the same pool as trying every pattern."""
    pools = [pool(f"={name}", name) for name in exact]
    pools += [pool(f"{name}*", f"{name}*") for name in prefixes]
    fits = [name for name in prefixes if model.startswith(name)]
    best = f"{max(fits, key=len)}*" if fits else "none"
    assert serving(model, *pools) == (f"={model}" if model in exact else best)


def test_eligible() -> None:
    """Only ready workers that serve the model are eligible."""
    first, second = worker("m"), worker("m", "n")
    down = worker("m", state=ProbeState.DOWN)
    unknown = worker("m", state=ProbeState.UNKNOWN)
    other = worker("n")
    found = pool("p", "*", workers=[down, first, unknown, other, second])
    assert found.eligible("m") == [first, second]
    assert found.eligible("n") == [other, second]
    with pytest.raises(NoWorker):  # known, though it is down: 503, not 404
        pool("p", "*", workers=[down, other]).eligible("m")
    with pytest.raises(UnknownModel):
        pool("p", "*", workers=[down, other]).eligible("x")
    with pytest.raises(NoWorker):  # until it has told its models, it may serve any
        pool("p", "*", workers=[worker(state=ProbeState.UNKNOWN)]).eligible("x")


@pytest.mark.parametrize("model", [None, ""])
def test_the_only_model(model: str | None) -> None:
    """A request without a model gets the only model there is; if pools serve several, it fails."""
    one = Fleet([pool("a", "*", workers=[worker("m"), worker("m")])])
    assert one.route(model)[1] == "m"
    two = Fleet([pool("a", "m", workers=[worker("m")]), pool("b", "n", workers=[worker("n")])])
    with pytest.raises(BadRequest, match="several models") as caught:
        two.route(model)
    assert caught.value.param == "model"
    with pytest.raises(NoWorker):
        Fleet([pool("a", "*", workers=[worker(state=ProbeState.UNKNOWN)])]).route(model)


#: Lists of models as vLLM and SGLang tell them: name, root, parent.
BASE, OTHER_NAME = ("base", "/models/base", None), ("gpt-4o", "/models/base", None)
SQL, OTHER = ("sql", "/adapters/sql", "base"), ("other", "/models/other", None)
BARE, BARE_TOO = ("m", None, None), ("n", None, None)


@pytest.mark.parametrize(
    ("lists", "base"),
    [
        ([[BASE]], "base"),
        ([[BASE, SQL]], "base"),
        ([[SQL, BASE]], "base"),
        ([[BASE, OTHER_NAME, SQL]], "base"),
        ([[BASE, OTHER_NAME], [OTHER_NAME]], "gpt-4o"),
        ([[BASE, SQL], [BASE], []], "base"),
        ([[SQL]], "sql"),
        ([[BARE]], "m"),
        ([[BARE, SQL]], "m"),
        ([[BASE, OTHER]], None),
        ([[BASE], [OTHER]], None),
        ([[BASE], [OTHER_NAME]], None),
        ([[BARE, BARE_TOO]], None),
        ([[("m", [], None), ("n", [], None)]], None),
        ([[BASE, SQL], [OTHER, SQL]], None),
    ],
)
def test_the_base_model(
    lists: list[list[tuple[str, object, str | None]]], base: str | None
) -> None:
    """A request without a model gets the base model that all workers have: adapters do not count,
    and several names of one model are one. A path as root says nothing across workers."""
    workers = [worker("m") for _ in lists]
    for one, told in zip(workers, lists, strict=True):
        one.models = {
            name: {"id": name, "root": root, "parent": parent} for name, root, parent in told
        }
    fleet = Fleet([pool("a", "*", workers=workers)])
    for model in (None, ""):
        if base is None:
            with pytest.raises(BadRequest, match="several models"):
                fleet.route(model)
        else:
            assert fleet.route(model)[1] == base


def test_the_base_model_changes_with_the_list() -> None:
    """A worker may be restarted with another model, or more of them."""
    one = worker("m")
    fleet = Fleet([pool("a", "*", workers=[one])])
    assert fleet.route(None)[1] == "m"
    one.models = {"n": {"id": "n"}, "sql": {"id": "sql", "parent": "n"}}
    assert fleet.route(None)[1] == "n"


def test_one_model_is_described_as_among_all() -> None:
    """By a worker of its own pool; one that no pool takes, or no worker has, is not."""
    fleet = Fleet(
        [
            pool("a", "m", workers=[worker("m", "n", "x"), worker("m")]),
            pool("b", "n", "o", workers=[worker("m", "n")]),
        ]
    )
    for number, one in enumerate(fleet.workers):
        one.models = {name: {"id": name, "told by": number} for name in one.models}
    every = fleet.models()
    assert set(every) == {"m", "n"}
    for name in ("m", "n", "o", "x", ""):
        assert fleet.described(name) == every.get(name)


def hint(fleet: Fleet, asked: str) -> str:
    """Return the model that an unknown name is answered with; empty if none is."""
    with pytest.raises(UnknownModel) as refused:
        fleet.route(asked)
    message = refused.value.message.removeprefix(f"The model {asked!r} does not exist.")
    return message.removeprefix(" Did you mean '").removesuffix("'?")


@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        ("Llama-3.1-8B", "meta/llama-3.1-8b"),
        ("META/llama-3.1-8b", "meta/llama-3.1-8b"),
        ("other/QWEN", "qwen"),
        ("llama", ""),
        ("hidden", ""),  # no pool takes it
        ("qwen2", ""),
    ],
)
def test_a_model_that_was_probably_meant(asked: str, meant: str) -> None:
    """Its name differs in case or by the organization before it, and it can be asked for."""
    pools = pool("a", "meta/*", workers=[worker("meta/llama-3.1-8b", "x/hidden")])
    fleet = Fleet([pools, pool("b", "q*", workers=[worker("qwen")])])
    assert hint(fleet, asked) == meant


@pytest.mark.parametrize(
    ("models", "asked", "meant"),
    [
        (("x/m", "y/m", "z/m"), "Y/M", "y/m"),  # first the one that differs only in case
        (("x/m", "y/m", "z/m"), "other/m", "x/m"),
        (("m",), "gpt-4o", "m"),  # the only one
        (("m" * 201,), "x", ""),  # too long to show
    ],
)
def test_which_of_several_is_meant(models: Sequence[str], asked: str, meant: str) -> None:
    """The only model there is, or the one whose name is nearest."""
    fleet = Fleet([pool("a", "*", workers=[worker(*models), worker(models[0])])])
    assert hint(fleet, asked) == meant


def test_not_many_names_are_compared() -> None:
    """A stranger's request must not take long because there are many adapters; nor is a model
    called the only one if not all were seen."""
    many = [f"adapter-{number}" for number in range(2 * MAX_COMPARED_NAMES)]
    fleet = Fleet([pool("a", "*", workers=[worker(*many)])])
    assert hint(fleet, "ADAPTER-1") == "adapter-1"
    assert hint(fleet, f"A{many[-1][1:]}") == ""
    alike = [worker("a")] * MAX_COMPARED_NAMES
    assert hint(Fleet([pool("a", "*", workers=[*alike, worker("b")])]), "x") == ""


def test_names_do_not_fill_the_memory() -> None:
    """Unknown names are not kept, and of those of adapters, which come and go, only so many."""
    one = worker("m")
    fleet = Fleet([pool("a", "*", workers=[one])])
    for number in range(MAX_ROUTES + 10):
        with pytest.raises(UnknownModel):
            fleet.route(f"none-{number}")
        one.models = {f"adapter-{number}": {"id": f"adapter-{number}"}}
        fleet.route(f"adapter-{number}")
    assert len(fleet._routes) <= 10
    assert fleet.route(f"adapter-{number}")[2] == [one]


def test_lost() -> None:
    """A worker that cannot be reached gets no requests and is probed at once."""
    one = worker("m")
    one.lost("connection refused")
    assert (one.ready, one.reason) == (False, "connection refused")
    assert one.attention.is_set()
    with pytest.raises(NoWorker):
        pool("p", "*", workers=[one]).eligible("m")


class Watching(LeastLoad):
    """A strategy that records every placement, or raises."""

    def __init__(self) -> None:
        super().__init__(NoOptions())
        self.placements: list[str] = []
        self.broken = False

    def placed(self, prompt: Prompt, worker: WorkerView, now: float) -> None:  # noqa: ARG002
        """Record the worker, or raise."""
        if self.broken:
            raise RuntimeError("a strategy with a bug")
        self.placements.append(worker.name)

    def waits(self, prompt: Prompt) -> Callable[[], None]:  # noqa: ARG002
        """Record both the call and its end, or raise."""
        self.placed(PROMPT, worker("m"), 0.0)
        return self._over

    def _over(self) -> None:
        self.placed(PROMPT, worker("m"), 0.0)


def test_booked() -> None:
    """A booking counts at once, until it is released; a second release changes nothing."""
    one, strategy = worker("m"), Watching()
    found = Pool("p", ["*"], [one], strategy)
    booking = found.book(PROMPT, Candidate(one, Cost(prefill=5.0)), monotonic())
    assert strategy.placements == [one.name]
    assert (one.load.in_flight, one.load.kv_tokens, booking.prefill_s) == (1, 1100, 5.0)
    assert one.wait() > 1.0
    for _ in range(2):
        one.load.release(booking, monotonic())
        assert (one.load.in_flight, one.load.kv_tokens, one.wait()) == (0, 0, 0.0)


@pytest.mark.parametrize(
    ("first", "then", "logged"), [(True, True, 1), (False, True, 1), (False, False, 0)]
)
def test_a_broken_strategy_is_told_of_those_that_are_held(
    caplog: pytest.LogCaptureFixture, logged: int, *, first: bool, then: bool
) -> None:
    """Whether it raises at their beginning or at their end, the request goes on."""
    strategy = Watching()
    strategy.broken = first
    over = Pool("p", ["*"], [], strategy).waits(PROMPT)
    strategy.broken = then
    over()
    assert len(strategy.placements) == [2, 1, 0][first + then]
    assert caplog.text.count("pool p: its strategy raised an error") == logged


@pytest.mark.parametrize("prefill_s", [nan, inf, -1.0])
def test_what_is_not_booked(prefill_s: float) -> None:
    """A strategy of others may predict what is no time, which would stay in the sums for ever, or
    raise when it is told of a placement."""
    one, strategy = worker("m"), Watching()
    found = Pool("p", ["*"], [one], strategy)
    with pytest.raises(ValueError, match="s of prefill"):
        found.book(PROMPT, Candidate(one, Cost(prefill=prefill_s)), 0.0)
    assert one.load.given_s == 0.0
    strategy.broken = True
    with pytest.raises(RuntimeError):
        found.book(PROMPT, Candidate(one, Cost(prefill=5.0)), 0.0)
    assert (one.load.in_flight, one.load.kv_tokens, one.load.wait(0.0)) == (0, 0, 0.0)


def test_a_restarted_worker_is_not_late_any_more() -> None:
    """Whatever hung there is gone: it takes requests as any other does."""
    served = worker("m")
    fleet = Fleet([pool("p", "*", workers=[served])])
    served.load.moved(monotonic())
    assert served.availability(monotonic())[0] is Availability.STUCK
    assert served.wait() > 0.0
    fleet.restarted(served)
    assert served.availability(monotonic())[0] is Availability.READY
    assert served.wait() == 0.0
