"""The last part of a KV cache is left to prompts that take little time to compute."""

from math import nextafter

import pytest
from msgspec.structs import replace

from strategies.base import Candidate, Cost, Decision, Prompt
from strategies.held import FULL_LOOK_S, LOOK_S
from strategies.latebinding import LateBinding, why_held
from strategies.load import STAY_S
from strategies.loads import Loading
from strategies.pace import MARGIN
from strategies.registry import make
from strategies.reserve import ANSWERS, LATER_S, MOST_S, NEARLY, left_to_others
from tests.strategies.placing import Stand

SPACE = 400_000
#: What a prompt needs, and what others may use before it needs what is left to shorter ones.
OWN = 16_000
FREE = int(NEARLY * SPACE) - OWN
#: Answers that are being written, and seconds of prefill in which `ANSWERS` of them end.
FLOW = 10
LONG_S = ANSWERS * STAY_S / FLOW


def choice(
    used: int = FREE + 1,
    prefill_s: float = LONG_S,
    *,
    preempts: int = 0,
    shared: int = 0,
    held: int = 0,
    space: int | None = SPACE,
    answers: int = FLOW,
    home: float = LATER_S,
) -> Candidate:
    """Return the choice of a worker where answers use so many tokens of the KV cache."""
    stand = Stand("a")
    stand.room_tokens = space
    for number in range(answers):
        booking = stand.load.book(0.0, 0.1, used if number == 0 else 0)
        stand.load.first_byte(booking, 0.0)
    stand.load.share(shared, 0.0)
    return Candidate(stand, Cost(prefill=prefill_s, home=home), held, preempts=preempts)


def asked(tokens: int = OWN - 100, *, resumed: bool = False) -> Prompt:
    """Return a prompt, of whose answer 100 tokens are expected."""
    return Prompt("m", tokens, answer_tokens=100, resumed=resumed)


def test_what_is_left_of_a_nearly_full_cache_is_for_shorter_ones() -> None:
    """A prompt that takes long is held if it would use some of that, and no other."""
    assert left_to_others(asked(), choice(), 0.0)
    assert not left_to_others(asked(), choice(FREE), 0.0)
    assert not left_to_others(asked(), choice(prefill_s=nextafter(LONG_S, 0.0)), 0.0)


def test_what_takes_long_depends_on_how_often_answers_end() -> None:
    """Where they end seldom, a prompt would wait for long compared with its own time."""
    there = choice(answers=FLOW - 1)
    assert not left_to_others(asked(), there, 0.0)
    there.worker.load.book(0.0, 0.1)
    assert left_to_others(asked(), there, 0.0), "one that is still computed counts as well"
    there = choice()
    there.worker.load.stay_s *= 1.01
    assert not left_to_others(asked(), there, 0.0)


def test_where_all_prompts_take_long_none_is_held() -> None:
    """On a slow accelerator that has as much to compute as it can, each counts as any other."""
    actual_s, stay_s = 20.0, 100.0
    there = choice(prefill_s=MARGIN * actual_s, answers=int(stay_s / actual_s))
    there.worker.load.stay_s = stay_s
    assert not left_to_others(asked(), there, 0.0)


def test_what_lies_there_or_is_shared_takes_no_room() -> None:
    """Only what it adds to the cache counts, and what answers share counts once."""
    assert not left_to_others(asked(), choice(FREE + 500, held=500), 0.0)
    assert left_to_others(asked(), choice(FREE + 501, held=500), 0.0)
    assert not left_to_others(asked(), choice(FREE + 500, shared=500), 0.0)
    assert left_to_others(asked(), choice(FREE + 501, shared=500), 0.0)


def test_what_is_loaded_takes_room() -> None:
    """A prompt of which some lies on a slower tier takes as much as one that is computed."""
    loading = Loading(1.0, l1=500)
    assert left_to_others(asked(), replace(choice(held=500), loading=loading), 0.0)
    assert not left_to_others(asked(), replace(choice(FREE, held=500), loading=loading), 0.0)


def test_where_nothing_is_known_of_prompts_none_is_held() -> None:
    """`leastload` takes each for one of which nothing lies there, however little it computes."""
    there, strategy = choice().worker, make("leastload", {})
    prompt = Prompt("m", 2 * OWN, answer_tokens=100)
    decision = strategy.rank(prompt, [there], 0.0)
    assert decision.candidates[0].cost.prefill > LONG_S
    assert not LateBinding.must_hold(prompt, decision, 0.0)


def test_where_little_is_asked_for_again_none_is_held() -> None:
    """Nor where later turns hardly wait: then no short prompts come that need the room."""
    assert not left_to_others(asked(), choice(home=nextafter(LATER_S, 0.0)), 0.0)


def test_not_for_long() -> None:
    """A cache may stay nearly full, so it is held for some seconds only."""
    assert left_to_others(asked(), choice(), nextafter(MOST_S, 0.0))
    assert not left_to_others(asked(), choice(), MOST_S)


def test_who_needs_most_of_the_cache_waits_for_no_smaller_ones() -> None:
    """A prompt that hardly fits beside anything would wait for nothing."""
    half = SPACE // 2
    assert left_to_others(asked(half - 100), choice(half), 0.0)
    assert not left_to_others(asked(half - 100), choice(half - 1), 0.0)
    assert not left_to_others(asked(SPACE - 100), choice(0), 0.0)


@pytest.mark.parametrize(
    ("resumed", "preempts", "space"),
    [(True, 0, SPACE), (False, 1, SPACE), (False, 0, None), (False, 0, 0)],
    ids=["gave way", "others give way", "room unknown", "no room"],
)
def test_never(resumed: bool, preempts: int, space: int | None) -> None:
    """Not if it has begun there before, if others give way to it, or if nothing is known."""
    there = choice(preempts=preempts, space=space)
    assert not left_to_others(asked(resumed=resumed), there, 0.0)


def test_it_is_held_until_an_answer_ends_or_it_waited_long_enough() -> None:
    """It is sent at once if there is room, and a shorter one even if there is none to spare."""
    there = choice()
    load, decision = there.worker.load, Decision((there,), "load")
    short = Decision((Candidate(there.worker, Cost(prefill=0.1)),), "load")
    assert LateBinding.must_hold(asked(), decision, 0.0)
    assert not LateBinding.must_hold(asked(), short, 0.0)
    assert why_held(asked(), decision, 0.0) == "reserve"
    ended: LateBinding[str] = LateBinding()
    ended.enter("long", asked(), decision, 0.0)
    assert ended.release(lambda _: decision, 0.99 * MOST_S, [load]) is None
    assert ended.release(lambda _: decision, MOST_S + FULL_LOOK_S, [load]) is not None
    ended.enter("long", asked(), decision, 20.0)
    load.share(1, 20.5)
    assert ended.release(lambda _: decision, 21.0, [load]) is not None


def test_it_is_looked_at_now_and_then() -> None:
    """It is not decided anew whenever anything ends, as its worker has no queue all the time."""
    there = choice()
    decision, decided = Decision((there,), "load"), list[float]()

    def rank(_: Prompt) -> Decision:
        decided.append(now)
        return decision

    ended: LateBinding[str] = LateBinding()
    ended.enter("long", asked(), decision, 0.0)
    for step in range(40):
        now = step * FULL_LOOK_S / 4
        ended.release(rank, now, [there.worker.load])
    assert decided == pytest.approx([FULL_LOOK_S * (1 + n) for n in range(9)])


def test_once_it_was_held_for_long_enough_it_is_held_as_others_are() -> None:
    """If it then waits for a queue, it is looked at as seldom, or once it gains."""
    there, queue = choice(), Stand("b")
    loads = [there.worker.load, queue.load]
    room = Decision((there,), "load")
    queued = Decision((replace(there, cost=there.cost._replace(wait=9.0)),), "load")
    there.worker.load.book(0.0, 9.0, uncached=20_000)
    binding: LateBinding[str] = LateBinding()
    held = binding.enter("long", asked(), room, 0.0)
    assert (held.reserve, held.again) == (True, FULL_LOOK_S)
    assert binding.release(lambda _: queued, MOST_S, loads) is None
    assert (held.reserve, held.again) == (False, MOST_S + LOOK_S)
