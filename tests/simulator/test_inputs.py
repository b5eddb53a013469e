"""Reading traces, text that stands for blocks, and generated workloads."""

from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from simulator.traces import (
    TraceError,
    TraceRequest,
    ideal_hit_rate,
    prompt_text,
    read_trace,
    spread,
)
from simulator.workloads import chats, document_questions

GOOD = '{"timestamp": 3000, "input_length": 600, "output_length": 7, "hash_ids": [1, 2]}\n'


def request(at_s: float = 0.0, tokens: int = 512, ids: tuple[int, ...] = (1,)) -> TraceRequest:
    return TraceRequest(at_s, tokens, 1, ids)


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.zst"])
def test_a_trace_reads_the_same_plain_and_compressed(tmp_path: Path, name: str) -> None:
    """Time stamps are converted to seconds, and blank lines are ignored."""
    data = (GOOD + "\n" + GOOD).encode()
    path = tmp_path / name
    path.write_bytes(zstandard.compress(data) if name.endswith("zst") else data)
    assert list(read_trace(path)) == [TraceRequest(3.0, 600, 7, (1, 2))] * 2


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "truncated"),
        (b"\xff\xfe".decode("latin-1"), "malformed"),
        (GOOD.replace("600", '"600"'), "input_length"),
        (GOOD.replace("600", "0"), ">= 1"),
        (GOOD.replace("[1, 2]", "[1]"), "1 hash_ids for 600 tokens"),
        ('{"timestamp": 1}', "input_length"),
    ],
)
def test_a_bad_line_is_named_with_what_was_expected(tmp_path: Path, line: str, reason: str) -> None:
    """The error gives the file, the line, the fault and the expected form."""
    path = tmp_path / "trace.jsonl"
    path.write_text(GOOD + line, encoding="latin-1")
    with pytest.raises(TraceError) as caught:
        list(read_trace(path))
    said = str(caught.value)
    assert f"{path}, line 2: " in said
    assert reason in said
    assert '"hash_ids": [id, ...]' in said


@given(st.lists(st.integers(0, 20)), st.integers())
def test_spreading_keeps_order_and_stays_within_the_gap(stamps: list[int], seed: int) -> None:
    """No request passes the next time stamp, none is lost, and a seed always gives the same
    result."""
    before = [request(float(stamp), ids=(number,)) for number, stamp in enumerate(stamps)]
    after = spread(before, seed)
    assert after == spread(before, seed)
    assert [r.at_s for r in after] == sorted(r.at_s for r in after)
    ordered = sorted(before, key=lambda r: r.at_s)
    assert [r.hash_ids for r in after] == [r.hash_ids for r in ordered]
    for old, new in zip(ordered, after, strict=True):
        later = [stamp for stamp in stamps if stamp > old.at_s]
        assert old.at_s <= new.at_s
        assert not later or new.at_s <= min(later)


def test_prompts_agree_as_far_as_their_blocks_do() -> None:
    """Equal leading ids give an equal prefix; the last block is cut to the prompt's length."""
    one = prompt_text(request(tokens=1300, ids=(1, 2, 3)))
    two = prompt_text(request(tokens=1100, ids=(1, 2, 4)))
    assert (len(one), len(two)) == (5200, 4400)
    assert one[:4096] == two[:4096]
    assert one[4096:4400] != two[4096:]


def test_workloads_are_the_same_by_seed_and_differ_between_seeds() -> None:
    """The same seed gives the same workload, another seed another."""
    for made in (chats, document_questions):
        assert made(3) == made(3)
        assert made(3) != made(4)


def test_the_ideal_hit_rate_counts_leading_blocks_seen_before() -> None:
    """A block counts only if all blocks before it were seen as well."""
    requests = [
        request(tokens=1024, ids=(1, 2)),
        request(tokens=700, ids=(1, 2)),
        request(tokens=1024, ids=(3, 2)),
    ]
    assert ideal_hit_rate(requests) == 700 / (1024 + 700 + 1024)
    assert ideal_hit_rate([]) == 0.0
