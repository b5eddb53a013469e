"""The engine: batching, chunked prefill, reuse, preemption, and the duration of steps."""

from __future__ import annotations

import dataclasses
from array import array

from hypothesis import given
from hypothesis import strategies as st

from simulator.engine.core import Engine, Step
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
