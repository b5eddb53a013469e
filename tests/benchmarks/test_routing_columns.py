"""Columns, seeds and arrival rates."""

import pytest

from benchmarks.routing.columns import (
    CHOOSING,
    ENGINES,
    SMALL,
    chosen,
    columns,
    elsewhere,
    judging,
    scaled,
)

STOCK = {column.name: column for column in columns(None)}


def test_seeds_for_judging_are_others() -> None:
    """They depend on the number alone, differ from one another, and are none of those by which
    constants are chosen."""
    several = [judging(number, 5) for number in range(100)]
    assert judging(7, 5) == several[7]
    assert judging(7, 3) == several[7][:3]
    every = [seed for seeds in several for seed in seeds]
    assert len(set(every)) == len(every)
    assert not set(every) & set(CHOOSING)


def test_other_engines_run_some_workloads() -> None:
    """By names of their own; the stock engine runs all."""
    names = [column.name for column in elsewhere(STOCK["agents"])]
    assert names == [f"agents, {engine}" for engine in ENGINES]
    assert elsewhere(STOCK["groups"]) == []


@pytest.mark.parametrize("engine", ENGINES)
def test_workers_of_other_engines_are_as_busy(engine: str) -> None:
    """Slower ones get less, faster ones more, and those of the same size as much."""
    (column,) = [one for one in elsewhere(STOCK["mixed"]) if one.engine == engine]
    rate = scaled(column, STOCK["mixed"]).rate / STOCK["mixed"].rate
    pace = column.fleet.profile.prefill_tokens_per_s / SMALL.prefill_tokens_per_s
    assert rate == 1.0 if pace == 1.0 else 0.7 < rate / pace < 1.5


def test_prompts_that_do_not_fit_an_engine_are_left_out() -> None:
    """With all that follows them in their talk; the others stay."""
    stock = STOCK["agents"]
    (slow,) = [one for one in elsewhere(stock) if one.engine == "slow card"]
    here, there = stock.work(1, stock.rate), slow.work(1, stock.rate)
    room = slow.fleet.profile.kv_tokens
    assert 0.8 * here.requests < there.requests < here.requests
    whole = {talk.session: talk.turns for talk in here.talks}
    for talk in there.talks:
        assert all(turn.prompt_tokens + turn.answer_tokens <= room for turn in talk.turns)
        assert talk.turns == whole[talk.session][: len(talk.turns)]


def test_columns_are_chosen_by_beginnings() -> None:
    """One that is unknown is an error that lists the known ones."""
    every = list(STOCK.values())
    assert [column.name for column in chosen(["one", "mix"], every)] == ["one_prefix", "mixed"]
    with pytest.raises(ValueError, match=r"no column is called 'nonsense'.*'no_reuse'"):
        chosen(["nonsense"], every)
