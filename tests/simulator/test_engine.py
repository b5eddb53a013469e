"""The engine: batching, chunked prefill, reuse, preemption, and the duration of steps."""

from __future__ import annotations

import dataclasses
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.engine.core import Engine, QueueFullError, Step, TooLongError
from simulator.engine.profiles import PROFILES, Profile
from simulator.engine.request import EngineRequest

TOY = PROFILES["toy"]


def engine(kv_tokens: int | None = None, max_queued: int | None = None, **profile: float) -> Engine:
    """Create a toy engine with parts of its profile changed."""
    changed: Profile = dataclasses.replace(TOY, **profile)  # type: ignore[arg-type]
    return Engine(changed, kv_tokens=kv_tokens, max_queued=max_queued)


def request(name: str, prompt: range | list[int], answer: int = 4) -> EngineRequest:
    """Create a request whose answer of `answer` tokens is like no prompt."""
    return EngineRequest(name, array("I", prompt), array("I", range(10**6, 10**6 + answer)))


def drain(busy: Engine) -> list[Step]:
    """Run until nothing is left to do, and return all steps."""
    steps = []
    while busy.busy:
        steps.append(busy.step())
        assert len(steps) < 100_000
    return steps


def prefill_seconds(prompt: int) -> float:
    """Return the time to first token of a prompt of this length on a cold engine."""
    cold = Engine(PROFILES["llama-3.1-8b-h100"])
    cold.add(request("one", range(prompt), 1), 0.0)
    return sum(step.duration_s for step in drain(cold))


def test_a_request_gets_its_answer_one_token_a_step() -> None:
    """The first step computes the prompt and gives the first token."""
    one = engine()
    asked = request("one", range(40), 3)
    one.add(asked, 0.0)
    steps = drain(one)
    assert [len(step.emitted) for step in steps] == [1, 1, 1]
    assert steps[-1].finished == [asked]
    assert asked.tokens[40:] == asked.answer


@given(st.integers(1, 200), st.integers(1, 200))
def test_a_hit_leaves_at_least_one_token_to_compute(length: int, common: int) -> None:
    """Hits are whole blocks of the common prefix, never the whole prompt."""
    one = engine()
    one.add(request("a", range(length)), 0.0)
    drain(one)
    shared = min(length, common)
    second = request("b", [*range(shared), *range(10**5, 10**5 + common - shared)])
    one.add(second, 0.0)
    drain(one)
    assert second.cached_tokens == min(shared, common - 1) // 16 * 16


def test_answers_are_cached_for_the_next_turn() -> None:
    """A prompt that contains the previous answer also hits the answer's blocks."""
    one = engine()
    first = request("a", range(16), 33)
    one.add(first, 0.0)
    drain(one)
    turn = request("b", [*first.tokens, 7, 8, 9])
    one.add(turn, 0.0)
    drain(one)
    assert turn.cached_tokens == 48


def test_a_long_prompt_is_computed_in_chunks_while_others_decode() -> None:
    """Other requests decode in every step, and each step stays within its token budget."""
    one = engine(max_num_batched_tokens=64)
    short, long = request("short", range(8), 50), request("long", range(1000, 1300), 2)
    one.add(short, 0.0)
    one.step()
    one.add(long, 0.0)
    chunked = []
    while not long.emitted:
        chunked.append(one.step())
    assert len(chunked) == 5  # 300 tokens at 63 a step
    assert all(short in step.emitted for step in chunked)


def test_waiting_requests_come_in_order_and_are_not_overtaken() -> None:
    """If the first waiting request does not fit, a small one behind it waits too."""
    one = engine(kv_tokens=160)
    one.add(request("running", range(96), 30), 0.0)
    one.step()
    one.add(request("large", range(1000, 1100), 1), 0.0)
    one.add(request("small", range(2000, 2010), 1), 0.0)
    one.step()
    assert (one.running, one.waiting) == (1, 2)
    order = [done.request_id for step in drain(one) for done in step.finished]
    assert order == ["running", "large", "small"]


def test_no_more_run_at_once_than_may() -> None:
    """`max_num_seqs` bounds the batch."""
    one = engine(max_num_seqs=3)
    for name in range(7):
        one.add(request(str(name), range(name * 100, name * 100 + 10)), 0.0)
    one.step()
    assert (one.running, one.waiting) == (3, 4)


def test_the_latest_arrival_is_preempted_and_still_gets_its_answer() -> None:
    """A full cache takes the blocks of the latest request, but none of its tokens are lost."""
    one = engine(kv_tokens=96)
    first, second = request("a", range(30), 40), request("b", range(1000, 1030), 40)
    one.add(first, 0.0)
    one.add(second, 0.0)
    steps = drain(one)
    assert one.totals.preemptions >= 1
    assert [done.request_id for step in steps for done in step.finished] == ["a", "b"]
    assert second.tokens[30:] == second.answer
    assert one.totals.generation_tokens == 80


def test_an_abort_frees_a_request_wherever_it_stands() -> None:
    """Running or waiting, it is gone at once; aborting it again does nothing."""
    one = engine(max_num_seqs=1)
    one.add(request("running", range(50), 100), 0.0)
    one.add(request("waiting", range(50), 100), 0.0)
    one.step()
    assert one.abort("waiting")
    assert one.abort("running")
    assert not one.abort("running")
    assert not one.busy
    assert one.cache.used == 0


def test_a_full_queue_refuses() -> None:
    """The bound counts requests that have not had their first step."""
    one = engine(max_queued=1)
    one.add(request("a", range(5)), 0.0)
    with pytest.raises(QueueFullError):
        one.add(request("b", range(5)), 0.0)
    assert one.totals.rejected == 1
    one.step()
    one.add(request("c", range(5)), 0.0)


def test_what_can_never_fit_is_refused() -> None:
    """Prompt and answer together must fit into the cache."""
    one = engine(kv_tokens=64)
    with pytest.raises(TooLongError):
        one.add(request("a", range(60), 5), 0.0)
    one.add(request("b", range(60), 4), 0.0)
    drain(one)


def test_prefill_time_grows_faster_than_the_prompt() -> None:
    """Attention makes twice the prompt cost more than twice the time."""
    assert prefill_seconds(40_000) > 2.4 * prefill_seconds(20_000)


def test_a_decode_step_takes_longer_for_more_and_longer_sequences() -> None:
    """Batch size and context length both count."""

    def decode_step(sequences: int, context: int) -> float:
        batch = Engine(PROFILES["llama-3.1-8b-h100"])
        for name in range(sequences):
            start = name * 10**5
            batch.add(request(str(name), range(start, start + context), 5), 0.0)
        while len(batch.step().emitted) < sequences:
            pass  # some are still in prefill
        return batch.step().duration_s

    assert decode_step(8, 100) > decode_step(1, 100)
    assert decode_step(1, 10_000) > decode_step(1, 100)


@given(
    st.lists(
        st.tuples(st.integers(1, 120), st.integers(1, 60), st.integers(0, 3)),
        min_size=1,
        max_size=12,
    ),
    st.integers(0, 11),
)
def test_nothing_is_lost_whatever_is_asked(plan: list[tuple[int, int, int]], gone: int) -> None:
    """With preemptions and an abort, all other requests finish in full, every block is freed, and a
    second run gives the same result."""

    def run() -> tuple[list[str], float, dict[str, object]]:
        tight = engine(kv_tokens=256, max_num_seqs=5, max_num_batched_tokens=48)
        asked = [
            request(str(at), range(family * 1000, family * 1000 + prompt), answer)
            for at, (prompt, answer, family) in enumerate(plan)
        ]
        for each in asked:
            tight.add(each, 0.0)
        tight.step()
        tight.abort(str(gone))
        steps = drain(tight)
        assert tight.cache.used == 0
        for each in asked:
            if each.request_id != str(gone):
                assert each.finished
                assert each.tokens[each.prompt_tokens :] == each.answer
        order = [done.request_id for step in steps for done in step.finished]
        return order, sum(s.duration_s for s in steps), dataclasses.asdict(tight.totals)

    assert run() == run()
