"""The cost in seconds: one number a worker, and every strategy that compares workers uses it.

    wait + prefill + price + decode + room + home

Each term is a time that somebody waits: this request, those that decode, those that come later.
Where a term comes from is said beside its constant.
"""

from collections.abc import Callable, Mapping, Sequence
from math import exp

from strategies.base import NO_LOADING, Prompt, WorkerView
from strategies.demand import Demand
from strategies.load import BACK_S, Load
from strategies.loads import Loading
from strategies.ranking import Ranking, Row

#: Part of the prefill's seconds that each request decoding there counts: it stands still meanwhile.
CROWD = 0.03
#: Seconds that a full KV cache is worth: a step reads the cache once, which takes about 25 ms where
#: it is full, on every accelerator (memory over bandwidth: H100 80 GB at 3.35 TB/s, A100 80 at 2.0,
#: L40S 48 at 0.86); over an answer of 240 tokens, half of it counted. Not the length of the answer
#: at hand: weighed by that, a thousand tokens drive prompts from their prefixes, and gain nothing.
DECODE_S = 3.0
#: From so many times the KV cache on it grows with the square. What requests have in common lies
#: there once and is read for each of them, so more may be in use than there is room: those whom one
#: more slows are many then, and what all have in common would never be worth a second copy.
CROWDED = 2.0
#: Part of a request's stay that it waits at least where there is no room for it.
LEAST_WAIT = 0.25
#: Seconds that one turn waits on a worker that was busy half of the time; u / (1 - u) times as long
#: at another share u of the time (what it was given over what it was not, both in seconds as
#: predicted), up to `MOST_HOME`.
HOME, MOST_HOME = 0.3, 4.0
#: Seconds that one turn waits for room where the KV cache has been full, counted from this share in
#: use: requests come and go, and one that is two thirds full on the average is full now and then.
FULL, FULL_FROM = 4.0, 0.6


class Costs:
    """Prices prompts on workers; remembers only what has been asked of them."""

    def __init__(self) -> None:
        self._demand = Demand()
        self._last: tuple[Prompt, float, float] | None = None
        self._told: Prompt | None = None
        """Whose demand was told last."""

    def rank(
        self,
        prompt: Prompt,
        workers: Sequence[WorkerView],
        now: float,
        held: Mapping[str, int] | None = None,
        *,
        loading: Mapping[str, Loading] | None = None,
        in_use: Callable[[str], float] | None = None,
    ) -> Ranking:
        """Return a candidate for each worker, cheapest first.

        `held` is how many tokens of the prompt a worker holds, `loading` what of it lies on slower
        tiers, by its name; while it is loaded nobody else is served, as while it is computed.
        `in_use` tells how many of its tokens the requests under way on a worker have. Ties go to
        the least booked, then to the least recently chosen.
        """
        waits, busy = _waits(workers, now)
        tokens, answer = prompt.tokens, prompt.answer_tokens
        most = max(held.values(), default=0) if held else 0
        demand, count = self._demand, len(workers)
        # (Of a session that begins without a prompt nothing is known: those take turns.)
        self._last = (prompt, busy / count, most / tokens) if tokens else None
        later, turns = demand.price(count), demand.turns() if tokens else 0.0
        slowness = DECODE_S if answer else 0.0
        rows: list[Row] = []
        curve, computed, least = None, dict[int, float](), -1
        for place, worker in enumerate(workers):
            name, load, pace, wait = worker.name, worker.load, worker.pace, waits[place]
            has = held.get(name, 0) if held else 0
            if pace.curve is not curve:  # the same all over a pool, and many hold equally much
                curve, computed = pace.curve, {}
            if has not in computed:
                computed[has] = curve.seconds(tokens - has, has)
            prefill = pace.slower * computed[has]
            loads = NO_LOADING
            if loading and name in loading:
                loads = loading[name]
                prefill += loads.seconds
            price = (later + CROWD * load.decoding) * prefill
            decode = room = home = used = 0.0
            space = worker.room_tokens
            if not space:
                least = least if least >= 0 else _least_room(workers)
                space = least
            if space:
                used = float(load.kv_tokens + tokens + answer)
                decode = slowness * used / space * max(1.0, used / space / CROWDED)
                used += load.promised_tokens - load.shared_tokens
                # (What does not fit even where nothing runs is refused: none should wait for that.)
                if used > space >= tokens and load.in_flight:
                    taken = used - in_use(name) if in_use is not None else used
                    if taken > space:
                        room = load.stay_s * min(1.0, taken / space - 1.0 + LEAST_WAIT)
            if turns:
                home = turns * _turn_waits(load, used, space or 0, now)
            total = wait + prefill + price + decode + room + home
            turn = load.turn
            row = total, wait, turn, place, worker, prefill, price, decode, room, home, has, loads
            rows.append(row)
        return Ranking(rows)

    def placed(self, prompt: Prompt, now: float) -> None:
        """It is sent: news if it was ranked last, and not if it is sent again, or by others."""
        if self._last is not None and self._last[0] is prompt and self._told is not prompt:
            self._demand.arrived(self._last[1], self._last[2], now)
            self._told = prompt
        self._last = None


def _least_room(workers: Sequence[WorkerView]) -> int:
    """What a worker that does not tell is taken to have: as little as any other, or it has all."""
    return min([worker.room_tokens or 0 for worker in workers if worker.room_tokens], default=0)


def _turn_waits(load: Load, used: float, space: float, now: float) -> float:
    """Seconds that a later turn will wait there, with so many tokens of its KV cache in use."""
    waits, given = 0.0, load.given_s
    if space:
        usual = min(1.0, (used + load.kv_surplus(now)) / space)
        if usual > FULL_FROM:
            waits = FULL * (usual - FULL_FROM)
    if given:
        given *= exp(min(0.0, load.given_at - now) / BACK_S)
        rest = BACK_S - given
        waits += HOME * (given / rest if given < MOST_HOME * rest else MOST_HOME)
    return waits


def _waits(workers: Sequence[WorkerView], now: float) -> tuple[list[float], int]:
    """Seconds of prefill before a prompt on each of them, and how many have any to do."""
    waits, busy = [], 0
    for worker in workers:
        load = worker.load
        wait = load.promised_s
        if load.pending:
            wait += load.wait(now)
            busy += 1
        waits.append(wait)
    return waits, busy


def held_tokens(prompt: Prompt, blocks: int) -> int:
    """Tokens of `blocks` held blocks; the last token of a prompt is always computed.

    Source: vLLM `v1/core/kv_cache_manager.py`, `get_computed_blocks`.
    """
    if not blocks:
        return 0
    return min(int(prompt.ends[blocks] * prompt.unit_tokens), max(0, prompt.tokens - 1))
