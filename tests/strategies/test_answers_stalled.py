"""What is charged for the answers on a worker, which wait for a prompt and slow each other."""

from pathlib import Path

import pytest

from strategies.base import Candidate, Prompt
from strategies.cost import BRIEF_S, BY_REUSE, CROWD, DECODE_S, LASTING_S, SPREAD, Costs
from strategies.demand import LEAST_PRICE
from strategies.loads import Loading
from strategies.pace import MARGIN
from tests.strategies.placing import Stand


def charged(reuse: float, tokens: int) -> tuple[Candidate, Candidate]:
    """Return a worker with ten answers and an idle one, where so much of prompts is held."""
    costs = Costs()
    costs._demand.reuse = reuse
    workers = [Stand("w0"), Stand("w1")]
    workers[0].load.decoding, workers[0].load.kv_tokens = 10, 200_000
    found = costs.rank(Prompt("m", tokens, answer_tokens=200), workers, 0.0)
    few, many = sorted(found, key=lambda one: one.worker.name == "w0")
    return many, few


@pytest.mark.parametrize("tokens", [1_000, 40_000])
@pytest.mark.parametrize("reuse", [0.0, 0.1, 0.2, 0.9])
def test_answers_count_in_full_only_where_prompts_are_asked_for_again(
    reuse: float, tokens: int
) -> None:
    """Elsewhere they spread by themselves. But what a long prompt stalls counts more there, as it
    can go anywhere."""
    many, few = charged(reuse, tokens)
    counts = min(1.0, SPREAD + BY_REUSE * reuse)
    prefill = many.cost.prefill / MARGIN
    assert (BRIEF_S < LASTING_S < prefill) == (tokens > 10_000)
    assert (prefill < BRIEF_S) == (tokens < 10_000)
    brief, lasting = min(prefill, BRIEF_S), max(0.0, prefill - LASTING_S)
    stalls = CROWD * 10 * (prefill - (1.0 - counts) * (brief - lasting))
    assert many.cost.price - few.cost.price == pytest.approx(MARGIN * stalls)
    used = 200_000 / 400_000
    assert many.cost.decode - few.cost.decode == pytest.approx(counts * DECODE_S * used)


def test_loading_stalls_as_computing_does() -> None:
    """A prompt that takes long only because it is loaded is no brief one."""
    costs, loading = Costs(), {"w0": Loading(7.0)}
    costs._demand.reuse = 0.0
    workers = [Stand("w0"), Stand("w1")]
    for worker in workers:
        worker.load.decoding = 10
    held = {"w0": 900, "w1": 900}
    found = costs.rank(Prompt("m", 1_000), workers, 0.0, held, loading=loading)
    brief, lasting = (one.cost for one in found)
    one = (brief.price / brief.prefill - LEAST_PRICE) / 10
    other = (lasting.price / lasting.prefill - LEAST_PRICE) / 10
    assert one == pytest.approx(SPREAD * CROWD)
    own = brief.prefill / MARGIN
    eased = BRIEF_S - (7.0 + own - LASTING_S)
    assert other == pytest.approx(CROWD * (1.0 - (1.0 - SPREAD) * eased / (7.0 + own)))


def first(reuse: float, workers: list[Stand], tokens: int) -> str:
    """Return the cheapest worker for so many tokens, where so much of prompts is held."""
    costs = Costs()
    costs._demand.reuse = reuse
    return costs.rank(Prompt("m", tokens, answer_tokens=200), workers, 0.0)[0].worker.name


def test_a_short_prompt_need_not_wait_to_spare_answers() -> None:
    """It would be sent behind another one, for the sake of half as many answers."""
    idle, busy = workers = [Stand("idle"), Stand("busy")]
    idle.load.decoding, idle.load.kv_tokens = 40, 160_000
    busy.load.decoding, busy.load.kv_tokens = 20, 100_000
    busy.load.book(0.0, 0.25, 1_000)
    assert (first(0.0, workers, 1_500), first(0.5, workers, 1_500)) == ("idle", "busy")


def test_a_long_prompt_goes_where_it_stalls_fewer() -> None:
    """If it is bound to no worker, it waits longer for that."""
    many, few = workers = [Stand("many"), Stand("few")]
    many.load.decoding, few.load.decoding = 20, 10
    few.load.book(0.0, 4.0, 10_000)
    assert (first(0.0, workers, 40_000), first(0.5, workers, 40_000)) == ("few", "many")


def test_the_documented_share_is_the_one_that_is_charged() -> None:
    """It is named for both terms, and up to which share of held prompts it is less than all."""
    page = (Path(__file__).parents[2] / "docs" / "routing.md").read_text()
    assert page.count(f"`{SPREAD:g} + {BY_REUSE:g} \N{MULTIPLICATION SIGN} h`") == 2
    assert page.count(f"below {(1.0 - SPREAD) / BY_REUSE:g}") == 2


def test_what_has_no_answer_slows_none() -> None:
    """Such as a text to be embedded: it leaves once it is computed. But answers wait for it."""
    workers = [Stand("full"), Stand("empty")]
    workers[0].load.decoding, workers[0].load.kv_tokens = 10, 300_000
    found = Costs().rank(Prompt("m", 1_000, answer_tokens=0), workers, 0.0)
    costs = {one.worker.name: one.cost for one in found}
    assert costs["full"].decode == costs["empty"].decode == 0.0
    assert costs["full"].price > costs["empty"].price
    assert costs["full"].total > costs["empty"].total
