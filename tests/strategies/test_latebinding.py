"""Holding requests until a worker is about to be free."""

from math import inf

import pytest

from strategies.base import Candidate, Cost, Decision, Prompt
from strategies.cost import Costs
from strategies.latebinding import (
    AREA_S,
    COMPARED,
    DECIDED_ANEW,
    JOINED_LEAST,
    JOINED_TOKENS,
    LACKING_S,
    LONGEST_S,
    LOOK_S,
    LOOKED_AT,
    READY_EACH,
    READY_S,
    READY_TOKENS,
    Held,
    LateBinding,
)
from strategies.load import Load
from strategies.loads import Loading
from strategies.pace import Pace
from strategies.preemption import AGING, STEP_S

#: A model that every worker serves; each also serves a model with its own name.
ANY = "any"
#: More tokens than one engine step computes.
MANY = READY_TOKENS + 1


class Stand:
    """A worker with so many seconds of prefill to do."""

    def __init__(self, name: str, busy_s: float = 0.0) -> None:
        self.name = name
        self.load = Load()
        self.pace = Pace()
        self.kv_tokens: int | None = None
        self.room_tokens: int | None = None
        if busy_s:
            self.load.book(0.0, busy_s, uncached=MANY, stream=False)


class Desk:
    """Decides by wait and prefill alone; each prompt token takes a second on any worker."""

    def __init__(self, *workers: Stand) -> None:
        self.workers = workers
        self.binding: LateBinding[str] = LateBinding()
        self.now = 0.0
        self.decided = 0
        """Number of decisions so far."""

    def rank(self, prompt: Prompt) -> Decision:
        """Compare the workers that serve the model."""
        costs = [
            Candidate(w, Cost(w.load.wait(self.now) + w.load.promised_s, float(prompt.tokens)))
            for w in self.workers
            if prompt.model in {w.name, ANY}
        ]
        self.decided += 1
        return Decision(sorted(costs, key=lambda c: c.cost.total), "load")

    def come(self, name: str, tokens: int, model: str = ANY, tenant: str = "") -> bool:
        """Let a request arrive; return whether it is held."""
        prompt = Prompt(model, tokens)
        decision = self.rank(prompt)
        if not self.binding.must_hold(prompt, decision, self.now):
            return False
        self.binding.enter(name, prompt, decision, self.now, tenant)
        return True

    def released(self) -> list[str]:
        """Return the requests that are released now; each is booked before the next is asked
        for."""
        names = []
        loads = [worker.load for worker in self.workers]
        while released := self.binding.release(self.rank, self.now, loads):
            held, decision = released
            choice = decision.candidates[0]
            seconds = choice.cost.prefill
            choice.worker.load.book(self.now, seconds, uncached=MANY, stream=False)
            names.append(held.item)
        return names


def test_only_a_queue_is_waited_for_here() -> None:
    """A worker that is free, or is about to be, gets its request at once."""
    assert not Desk(Stand("a")).come("r", 5)
    assert not Desk(Stand("a", READY_S)).come("r", 5)
    assert Desk(Stand("a", READY_S + 0.1)).come("r", 5)


def test_what_one_step_computes_is_not_waited_for() -> None:
    """Bookings that one engine step computes do not cause a hold, however long the step takes:
    prompts sent one by one would waste it."""
    desk = Desk(Stand("a"))
    load = desk.workers[0].load
    for _ in range(4):
        load.book(0.0, 1.0, uncached=READY_TOKENS // 4)
    assert not desk.come("r", 1)
    more = load.book(0.0, 0.1, uncached=1)
    assert desk.come("r", 1)
    assert desk.released() == []
    assert desk.come("s", 1), "who is held is before it"
    load.release(more, 0.0)
    assert desk.released() == ["r"]
    load.first_byte(next(iter(load.pending)), 1.0)
    assert load.uncached == READY_TOKENS * 3 // 4 + MANY


@pytest.mark.parametrize(
    ("wait", "preempts", "held"),
    [
        (READY_S + STEP_S, 1, False),
        (READY_S + STEP_S + 0.01, 1, True),
        (READY_S + STEP_S, 0, True),
        (READY_S, 0, False),
    ],
)
def test_the_end_of_a_step_is_not_waited_for_here(
    wait: float, preempts: int, *, held: bool
) -> None:
    """A prompt that others give way to is sent at once, even if the worker has to end its step
    first: only then do they give way."""
    worker = Stand("a", 100.0)
    prompt, choice = Prompt(ANY, 1), Candidate(worker, Cost(wait, 1.0), preempts=preempts)
    assert LateBinding.must_hold(prompt, Decision([choice], "load"), 0.0) is held
    full = Candidate(worker, Cost(wait, 1.0, room=0.1), preempts=preempts)
    assert LateBinding.must_hold(prompt, Decision([full], "load"), 0.0)


def test_what_is_promised_has_an_order() -> None:
    """Each held request is promised with its need, by which it is compared with newcomers: the same
    at any time, and least for one that lacks room after a long wait."""
    desk = Desk(Stand("a", 1000.0))
    load = desk.workers[0].load
    assert desk.come("long", 8)
    desk.now = 10.0
    assert desk.come("short", 2)
    assert sorted(load.promises) == [(2.0 + AGING * 10.0, 2.0), (8.0, 8.0)]
    assert load.promised_s == 10.0
    full = Decision([Candidate(desk.workers[0], Cost(room=1.0, prefill=4.0))], "load")
    since = desk.now - LACKING_S
    held = desk.binding.enter("lacks", Prompt(ANY, 4), full, desk.now, since=since)
    assert min(load.promises) == (-inf, 4.0)
    desk.binding.leave(held, desk.now)
    assert sorted(load.promises) == [(2.0 + AGING * 10.0, 2.0), (8.0, 8.0)]
    desk.now = 20.0
    for one in list(desk.binding):
        desk.binding.leave(one, desk.now)
    assert (load.promises, load.promised_s) == ([], 0.0)


def test_who_comes_before_those_that_are_held_is_not() -> None:
    """One step's worth may be sent past held requests that need more, not past others."""
    desk = Desk(Stand("a"))
    load = desk.workers[0].load
    load.book(0.0, 5.0, uncached=READY_TOKENS)
    wait = Cost(5.0, 1.0)
    decision = Decision([Candidate(desk.workers[0], wait)], "load")
    for need, seconds, held in ((1.1, 9.0, False), (1.0, READY_S, False), (0.9, 0.1, True)):
        load.promises.append((need, seconds))
        assert desk.binding.must_hold(Prompt(ANY, 1), decision, 0.0) is held


def test_a_step_among_many_answers_takes_more_prompts() -> None:
    """Where many requests decode, a longer queue is sent before any is held."""
    desk = Desk(Stand("a"))
    load = desk.workers[0].load
    decoding = READY_TOKENS // READY_EACH * 2
    for _ in range(decoding):
        load.first_byte(load.book(0.0, 0.1, uncached=1), 0.0)
    load.book(0.0, 1.0, uncached=READY_EACH * decoding)
    assert not desk.come("r", 1)
    more = load.book(0.0, 1.0, uncached=1)
    assert desk.come("r", 1)
    load.release(more, 0.0)
    assert desk.released() == ["r"]


@pytest.mark.parametrize(
    ("own", "booked", "held"),
    [
        (JOINED_LEAST, JOINED_TOKENS - JOINED_LEAST, False),
        (JOINED_LEAST, JOINED_TOKENS - JOINED_LEAST + 1, True),
        (JOINED_LEAST - 1, READY_TOKENS + 1, True),
        (JOINED_TOKENS - READY_TOKENS - 1, READY_TOKENS + 1, False),
        (JOINED_TOKENS - READY_TOKENS, READY_TOKENS + 1, True),
    ],
)
def test_short_prompts_share_a_step(own: int, booked: int, *, held: bool) -> None:
    """A prompt of some length joins those that are booked if all of them are few tokens; what its
    worker holds of it does not count. If it was held before, it is released then."""
    worker = Stand("a")
    load = worker.load
    load.book(0.0, 5.0, uncached=booked)
    prompt = Prompt(ANY, own + 5_000)
    busy = Decision([Candidate(worker, Cost(5.0, 1.0), held_tokens=5_000)], "prefix")
    binding: LateBinding[str] = LateBinding()
    assert binding.must_hold(prompt, busy, 0.0) is held
    entered = binding.enter("r", prompt, busy, 0.0)
    released = binding.release(lambda _: busy, LOOK_S, [load])
    assert (released is None) is held
    assert released is None or released[0] is entered


def test_what_has_to_be_loaded_fills_a_step_too() -> None:
    """A prompt that a worker holds on a slower tier does not join others as a short one."""
    worker = Stand("a")
    worker.load.book(0.0, 5.0, uncached=READY_TOKENS + 1)
    prompt, cost = Prompt(ANY, JOINED_LEAST + 9_000), Cost(5.0, 1.0)
    held = Candidate(worker, cost, held_tokens=9_000)
    assert not LateBinding.must_hold(prompt, Decision([held], "prefix"), 0.0)
    loads = Candidate(worker, cost, held_tokens=9_000, loading=Loading(1.0, 9_000, 0))
    assert LateBinding.must_hold(prompt, Decision([loads], "l1"), 0.0)


def test_a_worker_that_tells_no_room_has_as_little_as_any() -> None:
    """What a prompt takes of its KV cache is then a share of the least that others report."""
    silent, small, large = Stand("a"), Stand("b"), Stand("c")
    small.room_tokens, large.room_tokens = 10_000, 50_000
    full = Cost(prefill=0.1, room=1.0)
    for others, share in (((small, large), 0.5), ((large,), 0.1), ((), 0.0)):
        choices = [Candidate(one, full) for one in (silent, *others)]
        held = LateBinding[str]().enter("r", Prompt(ANY, 5_000), Decision(choices, "cold"), 0.0)
        assert held.need(0.0)[1] == pytest.approx(0.1 + share * AREA_S)


def test_who_needs_much_of_a_full_cache_comes_later() -> None:
    """Prompts that lack room are sorted by what they take of the KV cache too, not by their prefill
    alone; so are those that they are promised before."""
    worker = Stand("a")
    worker.room_tokens = 10_000
    binding: LateBinding[str] = LateBinding()

    def come(name: str, tokens: int, prefill_s: float, room_s: float) -> Held[str]:
        cost = Cost(prefill=prefill_s, room=room_s)
        choice = Candidate(worker, cost, held_tokens=tokens - 1)
        return binding.enter(name, Prompt(ANY, tokens), Decision([choice], "prefix"), 0.0)

    large, small = come("large", 5_000, 0.1, 1.0), come("small", 500, 0.2, 1.0)
    waits = come("waits", 5_000, 0.3, 0.0)
    assert sorted((large, small, waits), key=lambda held: held.need(1.0)) == [waits, small, large]
    assert large.need(1.0)[1] == pytest.approx(0.1 + 0.5 * AREA_S - AGING)
    needs = [need for need, _ in worker.load.promises]
    assert needs == pytest.approx([0.1 + 0.5 * AREA_S, 0.2 + 0.05 * AREA_S, 0.3])


def test_a_full_cache_is_waited_for_too() -> None:
    """A request is held if no worker has room for it in its KV cache."""
    decision = Decision([Candidate(Stand("a"), Cost(room=0.1))], "load")
    assert LateBinding.must_hold(Prompt(ANY, 1), decision, 0.0)


def test_the_shortest_goes_first() -> None:
    """Each is released when the one before it is about to be done."""
    desk = Desk(Stand("a", 10.0))
    assert [desk.come(name, tokens) for name, tokens in (("long", 8), ("short", 2))] == [True] * 2
    assert desk.released() == []
    desk.now = 9.9
    assert desk.released() == ["short"]
    desk.now = 11.9
    assert desk.released() == ["long"]
    assert len(desk.binding) == 0


def test_waiting_makes_up_for_length() -> None:
    """Otherwise a stream of short requests would starve a long one."""
    desk = Desk(Stand("a", 10.0 + 8 / AGING))
    desk.come("long", 8)
    desk.now = 7 / AGING
    desk.come("short", 2)
    desk.now = 10.0 + 8 / AGING
    assert desk.released()[0] == "long"


def test_nobody_is_held_for_ever() -> None:
    """After `LONGEST_S` a request joins the worker's queue."""
    desk = Desk(Stand("a", 1000.0))
    desk.come("r", 5)
    desk.now = LONGEST_S - 1
    assert desk.released() == []
    desk.now = LONGEST_S
    assert desk.released() == ["r"]


def test_who_is_held_again_is_not_held_longer() -> None:
    """It has the place in its line that it came with, whoever was held meanwhile."""
    desk = Desk(Stand("a", 1000.0))
    desk.now, prompt = LONGEST_S - 1, Prompt(ANY, 5)
    for name, since in (("new", None), ("second", 0.2), ("first", 0.1)):
        desk.binding.enter(name, prompt, desk.rank(prompt), desk.now, since=since)
    assert [held.item for held in desk.binding] == ["first", "second", "new"]
    assert desk.released() == []
    desk.now = LONGEST_S + 0.3
    assert desk.released() == ["first", "second"]


def test_who_leaves_is_not_released() -> None:
    """A request whose client left is never released; leaving twice changes nothing."""
    desk = Desk(Stand("a", 10.0))
    prompt = Prompt(ANY, 5)
    held = desk.binding.enter("r", prompt, desk.rank(prompt), 0.0)
    desk.binding.leave(held, 0.0)
    desk.binding.leave(held, 0.0)
    assert desk.workers[0].load.promised_s == 0.0
    desk.now = 20.0
    assert desk.released() == []


def test_those_held_count_where_they_would_go() -> None:
    """New requests see held ones as queued, and choose a free worker even if it lacks the prefix.

    If they did not count, one hot prefix would keep all requests waiting for one worker while the
    others idle.
    """
    desk = Desk(Stand("a", 1.0), Stand("b", 4.0))
    assert [desk.come(str(number), 2) for number in range(4)] == [True] * 4
    promised = [worker.load.promised_s for worker in desk.workers]
    assert promised == [6.0, 2.0]


def test_a_release_takes_the_promise_with_it() -> None:
    """Once a request is released, its prefill is no longer promised."""
    desk = Desk(Stand("a", 1.0))
    desk.come("r", 2)
    desk.now = 1.0
    assert desk.released() == ["r"]
    assert desk.workers[0].load.promised_s == 0.0


def test_an_idle_worker_is_seen_whoever_waits_for_another() -> None:
    """Of two models in a pool, one has its worker free; a later request for the other model must
    not hide that."""
    desk = Desk(Stand("a", 1.0), Stand("b", 60.0))
    assert desk.come("first", 2, model="a")
    assert desk.come("last", 2, model="b")
    desk.now = 1.0
    assert desk.released() == ["first"]


def test_a_worker_that_joins_is_seen() -> None:
    """A held request goes to a worker that joined after the decision for it."""
    desk = Desk(Stand("a", 60.0))
    assert desk.come("r", 2)
    desk.workers = (*desk.workers, Stand("b"))
    desk.now = LOOK_S
    assert desk.released() == ["r"]


def test_nobody_is_let_go_without_room() -> None:
    """However long a request was held, it stays while no worker can take it (`rank` returns
    None)."""
    desk = Desk(Stand("a", 1.0))
    assert desk.come("r", 2)
    loads = [worker.load for worker in desk.workers]
    desk.now = LONGEST_S
    assert desk.binding.release(lambda _: None, desk.now, loads) is None
    assert len(desk.binding) == 1
    assert desk.released() == ["r"]


def test_tenants_take_turns_at_being_looked_at() -> None:
    """A tenant with hundreds of held requests does not hide another tenant's first."""
    desk = Desk(Stand("a", 10.0))
    for number in range(2 * LOOKED_AT):
        assert desk.come(f"one{number}", 8, tenant="one")
    assert desk.come("other", 2, tenant="other")
    desk.now = 10.0
    assert desk.released()[0] == "other"


def test_who_waits_for_one_model_hides_nobody_who_waits_for_another() -> None:
    """However many requests a tenant has held for a worker that stays busy, its requests for other
    models are seen."""
    desk = Desk(Stand("a", 1000.0), Stand("b", 10.0))
    for number in range(2 * LOOKED_AT):
        assert desk.come(f"r{number}", 8, model="a")
    assert desk.come("last", 2, model="b")
    desk.now = 10.0
    assert desk.released() == ["last"]


def test_so_many_tenants_that_not_each_can_be_looked_at_at_once() -> None:
    """Tenants that are left out of one look come first in the next."""
    desk = Desk(Stand("a", 1000.0), Stand("b", 10.0))
    for number in range(LOOKED_AT):
        assert desk.come(f"r{number}", 8, model="a", tenant=f"t{number}")
    assert desk.come("last", 2, model="b", tenant="last")
    desk.now = 10.0
    assert desk.released() == []
    assert desk.released() == ["last"]


def test_a_look_decides_on_a_few() -> None:
    """A look runs within one step of the router's event loop, so it decides on few requests; the
    following looks reach all of them."""
    desk = Desk(Stand("a", 1000.0), *(Stand(f"b{number}", 0.1) for number in range(COMPARED // 4)))
    for number in range(LOOKED_AT):
        assert desk.come(f"r{number}", 8, model="a")
    most = 0
    looked: set[int] = set()
    loads = [worker.load for worker in desk.workers]

    def rank(prompt: Prompt) -> Decision:
        looked.add(id(prompt))
        return desk.rank(prompt)

    desk.now = LOOK_S
    for _ in range(LOOKED_AT):
        before = desk.decided
        assert desk.binding.release(rank, desk.now, loads) is None
        most = max(most, desk.decided - before)
    assert most <= 2 * DECIDED_ANEW
    assert len(looked) == LOOKED_AT


@pytest.mark.parametrize(("each", "large", "small"), [(10_000, 50_000, 10_000), (1000, 1600, 600)])
def test_small_prompts_do_not_take_the_room_that_a_large_one_waits_for(
    each: int, large: int, small: int
) -> None:
    """Once a large prompt has waited long, new requests see its room as taken, and it goes before
    all others."""
    worker, costs = Stand("a"), Costs()
    worker.room_tokens = 10 * each
    running = [worker.load.book(0.0, 0.0, each) for _ in range(10)]
    for booking in running:
        worker.load.first_byte(booking, 0.0)
    binding: LateBinding[str] = LateBinding()
    now = 0.0

    def rank(prompt: Prompt) -> Decision:
        return Decision(costs.rank(prompt, [worker], now), "load")

    def come(name: str, tokens: int) -> None:
        prompt = Prompt("m", tokens, answer_tokens=0)
        decision = rank(prompt)
        assert binding.must_hold(prompt, decision, now), f"{name} finds room"
        binding.enter(name, prompt, decision, now)

    come("large", large)
    now = LACKING_S
    assert binding.release(rank, now, [worker.load]) is None
    for number, booking in enumerate(running[: -(-large // each)]):
        assert binding.release(rank, now, [worker.load]) is None
        now += 1.0
        worker.load.release(booking, now)
        come(f"small{number}", small)
    released = binding.release(rank, now, [worker.load])
    assert released is not None
    assert released[0].item == "large"
    binding.leave(released[0], now)
    for held in binding:
        binding.leave(held, now)
    assert (worker.load.promised_s, worker.load.promised_tokens) == (0.0, 0)


def test_who_has_left_is_waited_for_by_nobody() -> None:
    """The promise of a request that left is dropped even while every worker is busy and none is
    looked at; those of the remaining requests stay."""
    worker = Stand("a", 100.0)
    desk = Desk(worker)
    for number in range(5):
        assert desk.come(f"r{number}", 4)
    first, *others = desk.binding
    for held in others:
        desk.binding.leave(held, 1.0)
    assert worker.load.promised_s == 4.0
    desk.now = 100.0
    assert desk.released() == ["r0"]
    desk.binding.leave(first, 100.0)
    assert worker.load.promised_s == 0.0
