"""What is charged for the answers on a worker, which wait for a prompt and slow each other."""

from strategies.api import Cost, Prompt
from strategies.cost.cost import Costs
from strategies.cost.tiers import Loading
from tests.strategies.placing import Stand


def costs_of(workers: list[Stand], prompt: Prompt) -> list[Cost]:
    """Return what the prompt costs on each of these workers."""
    found = {one.worker.name: one.cost for one in Costs().rank(prompt, workers, 0.0)}
    return [found[worker.name] for worker in workers]


def test_each_answer_counts_for_as_long_as_the_prompt_takes() -> None:
    """Twice as many, or twice the prompt, are twice as much; and what the KV cache holds slows
    them."""
    none, few, many = workers = [Stand("none"), Stand("few"), Stand("many")]
    for worker, count in ((few, 5), (many, 10)):
        worker.load.decoding, worker.load.kv_tokens = count, 20_000 * count
    idle, some, more = costs_of(workers, Prompt("m", 4_000, answer_tokens=200))
    stalled = some.price - idle.price
    assert stalled > 0.0
    assert abs(more.price - idle.price - 2 * stalled) < 1e-9
    assert idle.decode < some.decode < more.decode
    assert none.load.decoding == 0
    idle_long, some_long, _ = costs_of(workers, Prompt("m", 40_000, answer_tokens=200))
    assert some_long.price - idle_long.price > 10 * stalled


def test_loading_stalls_as_computing_does() -> None:
    """Answers wait for a prompt that takes long only because it is loaded."""
    workers = [Stand("computes"), Stand("loads")]
    for worker in workers:
        worker.load.decoding = 10
    held = {"computes": 900, "loads": 900}
    loading = {"loads": Loading(7.0)}
    found = Costs().rank(Prompt("m", 1_000), workers, 0.0, held, loading=loading)
    shares = [one.cost.price / one.cost.prefill for one in found]
    assert abs(shares[0] - shares[1]) < 1e-9


def test_what_has_no_answer_slows_none() -> None:
    """Such as a text to be embedded: it leaves once it is computed. But answers wait for it."""
    workers = [Stand("full"), Stand("empty")]
    workers[0].load.decoding, workers[0].load.kv_tokens = 10, 300_000
    full, empty = costs_of(workers, Prompt("m", 1_000, answer_tokens=0))
    assert full.decode == empty.decode == 0.0
    assert full.price > empty.price
    assert full.total > empty.total
