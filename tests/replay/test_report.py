"""Reports of a replay: sums, JSON and tables."""

import json

import pytest
from rich.console import Console, RenderableType

from router.replay.plan import Options, ReplayPlan
from router.replay.report import (
    Report,
    Run,
    Sample,
    comparison,
    report_of,
    tables,
    to_json,
)
from router.replay.stream import Fault, PromptDetails, ReportedUsage
from simulator.traces import TraceRequest

PLAN = ReplayPlan("trace", [TraceRequest(0.0, 512, 1, (1,))] * 3)


def sample(first: float, *, cached: int | None = 0, worker: str = "a") -> Sample:
    details = None if cached is None else PromptDetails(cached)
    return Sample(10.0, 12.0, 10.0 + first, worker, ReportedUsage(100, 5, details))


def report(run: Run, **options: float) -> Report:
    return report_of(run, PLAN, Options(**options), "m")  # type: ignore[arg-type]


def shown(what: RenderableType) -> str:
    console = Console(width=100, no_color=True)
    with console.capture() as capture:
        console.print(what)
    return capture.get()


def test_times_are_the_fleets_own() -> None:
    """Behind a fleet sped up tenfold, 0.1 s counts as 1 s."""
    run = Run([sample(0.1), sample(0.3)], [0.0], wall_s=4.0)
    summed = report(run, speed=10)
    assert summed.ttft_s is not None
    assert summed.e2e_s is not None
    assert summed.ttft_s.mean == pytest.approx(2.0)
    assert summed.e2e_s.p50 == summed.e2e_s.p99 == summed.e2e_s.max == pytest.approx(20.0)
    assert (summed.duration_s, summed.requests_per_s) == (40.0, 0.05)
    assert (summed.input_tokens_per_s, summed.output_tokens_per_s) == (5.0, 0.25)


def test_silence_on_cached_tokens_is_zero_once_anyone_told() -> None:
    """Workers may omit the field if nothing was cached: it is 0 once any worker sent it."""
    summed = report(Run([sample(0.1, cached=50), sample(0.1, cached=None)]))
    assert (summed.hit_rate, summed.cached_reported) == (0.25, 1)
    silent = report(Run([sample(0.1, cached=None)]))
    assert (silent.hit_rate, silent.cached_reported) == (None, 0)


def test_workers_get_their_share_and_errors_their_first_message() -> None:
    """Only answered requests count for workers; errors are counted by kind."""
    bad = [Sample(0.0, 1.0, fault=Fault("connect", text)) for text in ("first", "second")]
    summed = report(Run([sample(0.1), sample(0.1, worker="b"), sample(0.1), *bad]))
    assert {name: got.requests for name, got in summed.workers.items()} == {"a": 2, "b": 1}
    assert summed.workers["a"].prompt_tokens == 200
    assert (summed.errors["connect"].count, summed.errors["connect"].first) == (2, "first")
    assert (summed.answered, summed.failed) == (3, 2)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (Run([sample(0.1)], [0.2]), "lacked CPU"),
        (Run([sample(0.1)], [0.0], waited_for_slot=2), "2 requests waited"),
        (Run([sample(0.1)], [0.0], interrupted=True), "interrupted"),
        (Run([Sample(0.0, 1.0, 0.5)], [0.0]), "1 answers came without usage"),
    ],
)
def test_what_spoils_the_numbers_is_said(run: Run, words: str) -> None:
    """Lag, waiting, an early end and missing usage are warnings of the report."""
    summed = report(run)
    assert len(summed.warnings) == 1
    assert words in summed.warnings[0]
    assert words in shown(tables(summed)).replace("\n", " ")


def test_an_idle_generator_is_trusted() -> None:
    """Lag that is small against the times measured, or only some milliseconds, gives no warning."""
    assert report(Run([sample(1.0)], [0.05])).warnings == []
    assert report(Run([sample(0.001)], [0.005])).warnings == []


def test_json_has_stable_keys_and_null_for_unknown() -> None:
    """Scripts read the JSON: every key is there even if nothing was answered."""
    keys = [*json.loads(to_json(report(Run([sample(0.1)]))))]
    empty = json.loads(to_json(report(Run())))
    assert [*empty] == keys
    assert empty["ttft_s"] is None
    assert empty["requests_per_s"] == 0
    assert keys[:5] == ["name", "url", "model", "rate", "speed"]
    assert "0 of 3" in shown(tables(report(Run())))


def test_tables_show_what_came_as_it_came() -> None:
    """Names and messages are printed as text, never as markup."""
    summed = report(Run([sample(0.1, worker="[::1]"), Sample(0, 1, fault=Fault("x", "[/DONE]"))]))
    text = shown(tables(summed))
    assert "[::1]" in text
    assert "[/DONE]" in text
    assert "1 of 3" in text
    assert "one endless cache: 66.7%" in text


def test_a_comparison_ends_with_last_against_first() -> None:
    """The last column is the ratio of the last report to the first, or a dash if undefined."""
    slow = report(Run([sample(0.4, cached=10)], wall_s=1.0))
    fast = report(Run([sample(0.1, cached=80)], wall_s=1.0))
    text = shown(comparison({"roundrobin": slow, "prefixaware": fast}))
    rows = {line.split("│")[1].strip(): line.split("│")[2:-1] for line in text.splitlines()[4:-1]}
    assert [cell.strip() for cell in rows["TTFT p50"]] == ["0.400", "0.100", "0.25x"]
    assert [cell.strip() for cell in rows["Hit rate"]] == ["10.0%", "80.0%", "8.00x"]
    assert [cell.strip() for cell in rows["Errors"]] == ["0", "0", "-"]
    assert "prefixaware / roundrobin" in text
    assert "TTFT p50" in shown(comparison({}))  # as a demo may be cut short
