"""A pause for answers, before the next long prompt."""

from math import inf

import pytest
from msgspec.structs import replace

from strategies.base import Candidate, Cost, Decision, Prompt
from strategies.booking import Booking
from strategies.latebinding import READY_S, LateBinding, why_held
from strategies.load import LONG_S, Load
from strategies.pause import FEW, MOST_WAITING, SHORT_ANSWER, TOKEN_S, WORTH, pauses
from strategies.preemption import drop
from tests.strategies.desk import MANY
from tests.strategies.placing import Stand

PAUSE_S = TOKEN_S * SHORT_ANSWER
#: Seconds of prefill for which a pause is worth while with `ANSWERS` answers on the worker.
ANSWERS = FEW // 2
MUCH_S = WORTH * PAUSE_S / ANSWERS


def worker(answers: int = ANSWERS, long_s: float | None = LONG_S) -> Stand:
    """Return a worker with so many answers, where a prompt of `long_s` seconds ended at 0."""
    stand = Stand("a")
    for _ in range(answers - (long_s is not None)):
        stand.load.first_byte(stand.load.book(-1.0, 0.1), -1.0)
    if long_s is not None:
        stand.load.first_byte(stand.load.book(-1.0, long_s), 0.0)
    assert stand.load.decoding == answers
    return stand


def long_one(
    stand: Stand,
    prefill_s: float = MUCH_S,
    wait: float = 0.0,
    room: float = 0.0,
    *,
    preempts: int = 0,
) -> Decision:
    """Return the choice of that worker for a prompt of so many seconds, and of one that computes a
    long prompt."""
    choice = Candidate(stand, Cost(wait, prefill_s, room=room), preempts=preempts)
    other = Stand("b")
    other.load.book(0.0, LONG_S)
    return Decision((choice, Candidate(other, Cost(prefill=99.0))), "load")


def asked(answer: int = SHORT_ANSWER) -> Prompt:
    """Return a prompt whose answer is expected to have so many tokens."""
    return Prompt("m", 1_000, answer_tokens=answer)


def test_answers_may_end_before_the_next_long_prompt() -> None:
    """Once a long prompt is computed, there is a pause of as long as an answer takes."""
    decision = long_one(worker())
    assert pauses(asked(), decision, 0.0)
    assert pauses(asked(), decision, 0.99 * PAUSE_S)
    assert not pauses(asked(), decision, PAUSE_S)


@pytest.mark.parametrize(
    ("answers", "prefill_s", "answer"),
    [
        (ANSWERS, 0.99 * LONG_S, SHORT_ANSWER),
        (ANSWERS, 0.99 * MUCH_S, SHORT_ANSWER),
        (ANSWERS - 1, MUCH_S, SHORT_ANSWER),
        (FEW + 1, 2 * MUCH_S, SHORT_ANSWER),
        (ANSWERS, MUCH_S, SHORT_ANSWER + 1),
        (ANSWERS, MUCH_S, 0),
    ],
    ids=["short", "spares little", "few stand still", "many", "long answers", "no answer"],
)
def test_only_where_it_spares_much(answers: int, prefill_s: float, answer: int) -> None:
    """If it spares the answers there much more than it takes, and ends most of them."""
    assert not pauses(asked(answer), long_one(worker(answers), prefill_s), 0.0)


def test_only_between_long_prompts() -> None:
    """Answers that did not stand still need no pause."""
    assert not pauses(asked(), long_one(worker(long_s=None)), 0.0)
    assert not pauses(asked(), long_one(worker(long_s=0.99 * LONG_S)), 0.0)


@pytest.mark.parametrize(
    ("waiting", "pause"),
    [((0, 2), True), ((2, 0), True), ((1, 1), True), ((1, 2), False), ((3, 0), False)],
)
def test_not_if_many_wait(waiting: tuple[int, int], *, pause: bool) -> None:
    """If so many held requests a worker come before it, wherever that would go."""
    assert MOST_WAITING == 1.5
    decision = long_one(worker())
    for one, number in zip(decision.candidates, waiting, strict=True):
        one.worker.load.promises.extend([(0.0, 1.0)] * number)
    assert pauses(asked(), decision, 0.0) == pause


@pytest.mark.parametrize(
    ("computing", "ended", "pause"),
    [(2, 0, True), (1, 0, False), (1, 1, True), (0, 2, True), (0, 1, False)],
)
def test_only_if_most_workers_are_busy_with_long_prompts(
    computing: int, ended: int, *, pause: bool
) -> None:
    """Of four, three have to be: they compute one, or have a pause. Else one is free for it."""
    others = [Stand(str(number)) for number in range(3)]
    for stand in others[:computing]:
        stand.load.book(-9.0, LONG_S)
    for stand in others[computing : computing + ended]:
        stand.load.long_at = -0.5 * PAUSE_S
    first, _ = long_one(worker()).candidates
    rest = [Candidate(stand, Cost(prefill=99.0)) for stand in others]
    decision = Decision((first, *rest), "load")
    assert pauses(asked(), decision, 0.0) == pause
    assert pauses(asked(), decision, 0.6 * PAUSE_S) == (pause and not ended)


@pytest.mark.parametrize(("busy", "pause"), [(3, True), (2, False)])
def test_three_in_five_are_enough(busy: int, *, pause: bool) -> None:
    """Its own worker counts like the others."""
    first, _ = long_one(worker()).candidates
    others = [Stand(str(number)) for number in range(4)]
    for stand in others[: busy - 1]:
        stand.load.book(-9.0, LONG_S)
    rest = [Candidate(stand, Cost(prefill=99.0)) for stand in others]
    assert pauses(asked(), Decision((first, *rest), "load"), 0.0) == pause


def test_not_where_no_long_prompt_was_computed() -> None:
    """Answers there did not stand still, however busy all other workers are."""
    first, other = long_one(worker(long_s=None)).candidates
    others = [other] * 3
    assert not pauses(asked(), Decision((first, *others), "load"), 0.0)


@pytest.mark.parametrize(("workers", "pause"), [(1, True), (2, False)])
def test_few_workers(workers: int, *, pause: bool) -> None:
    """One that all prompts go to is busy; of two, both have to be."""
    first, _ = long_one(worker()).candidates
    idle = [Candidate(Stand("c"), Cost(prefill=99.0))] * (workers - 1)
    assert pauses(asked(), Decision((first, *idle), "load"), 0.0) == pause


def test_who_has_others_dropped_goes_at_once() -> None:
    """The prompts that it is sent instead of are longer still."""
    assert not pauses(asked(), long_one(worker(), preempts=1), 0.0)


def test_a_long_prompt_under_way_comes_before_the_pause() -> None:
    """While one is computed, even its last moment, the next is not sent after it."""
    stand = worker(long_s=None)
    booking = stand.load.book(0.0, LONG_S)
    assert pauses(asked(), long_one(stand), 10.0)
    stand.load.first_byte(booking, 10.0)
    stand.load.release(booking, 10.0)
    assert pauses(asked(), long_one(stand), 10.0)
    assert not pauses(asked(), long_one(stand), 10.0 + 1.01 * PAUSE_S)


def test_dropped_in_the_middle_it_still_kept_answers_waiting() -> None:
    """A preempted prompt that was being computed counts, one that was waiting its turn does not."""
    stand = worker(long_s=None)
    first, second = (stand.load.book(0.0, LONG_S) for _ in range(2))
    drop(second, long_one(stand).candidates[0], 1_000, 1.0)
    assert stand.load.long_at == -inf
    drop(first, long_one(stand).candidates[0], 1_000, 2.0)
    assert stand.load.long_at == 2.0


def test_whose_turn_never_came_kept_nobody_waiting() -> None:
    """A client that left while another prompt was computed there."""
    load = Load()
    load.book(0.0, 1.0)
    load.release(load.book(0.0, LONG_S), 0.5)
    assert load.long_at == -inf


def test_what_was_refused_kept_nobody_waiting() -> None:
    """A worker that did not accept a long prompt has not computed it."""
    load = Load()
    booking: Booking = load.book(0.0, LONG_S)
    load.take_back(booking, 1.0)
    load.release(booking, 1.0)
    assert load.long_at == -inf


def test_a_long_prompt_is_held_for_it() -> None:
    """It is held until the pause is over, or until enough answers have ended; a short one is
    sent."""
    stand = worker(answers=ANSWERS - 1)
    last = stand.load.book(0.0, 0.1)
    stand.load.first_byte(last, 0.0)
    binding: LateBinding[str] = LateBinding()

    def rank(prompt: Prompt) -> Decision:
        return long_one(stand, prompt.tokens / 1_000)

    prompt, short = (
        Prompt("m", int(1_001 * seconds), answer_tokens=SHORT_ANSWER) for seconds in (MUCH_S, 1)
    )
    assert LateBinding.must_hold(prompt, rank(prompt), 0.0)
    assert not LateBinding.must_hold(short, rank(short), 0.0)
    binding.enter("long", prompt, rank(prompt), 0.0)
    assert binding.release(rank, 0.9 * PAUSE_S, [stand.load]) is None
    stand.load.release(last, 0.9 * PAUSE_S)
    released = binding.release(rank, 0.9 * PAUSE_S, [stand.load])
    assert released is not None
    assert released[0].item == "long"
    binding.enter("long", prompt, rank(prompt), PAUSE_S)
    assert binding.release(rank, PAUSE_S, [stand.load]) is not None


@pytest.mark.parametrize(
    ("wait", "uncached", "room", "queues"),
    [
        (READY_S, MANY, 0.0, False),
        (READY_S + 0.01, MANY, 0.0, True),
        (READY_S + 0.01, MANY - 1, 0.0, False),
        (0.0, 0, 0.1, True),
    ],
)
def test_a_queue_is_told_from_a_pause(
    wait: float, uncached: int, room: float, *, queues: bool
) -> None:
    """An explanation says which of them a request is held for; it may join others in one step."""
    stand = worker()
    stand.load.book(0.0, 1.0, uncached=uncached)
    decision = long_one(stand, wait=wait, room=room)
    choice = replace(decision.candidates[0], held_tokens=asked().tokens)
    decision = replace(decision, candidates=[choice])
    assert why_held(asked(), decision, 0.0) == ("held" if queues else "pause")
