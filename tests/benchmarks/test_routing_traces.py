"""Two trace formats become the same kind of workload."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.routing.columns import columns
from benchmarks.routing.workloads import Work, agent_sessions, faster, mooncake, shuffled_starts
from simulator.traces import TraceError


def write(path: Path, *lines: object) -> Path:
    """Write lines of JSON."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_mooncake(tmp_path: Path) -> None:
    """A request is a talk of one turn; its session is its first block that few requests share."""
    lines = [
        {
            "timestamp": 1000 * n,
            "input_length": 1100,
            "output_length": 0,
            "hash_ids": [1, 10 + n // 2, 500 + n],
        }
        for n in range(200)
    ]
    work = mooncake(write(tmp_path / "t.jsonl", *lines), 1)
    assert work.requests == 200
    talk = work.talks[3]
    assert (talk.at_s, talk.session) == (3.0, 11)
    assert talk.turns[0].keys == (1, 11), "the third block is not full"
    assert talk.turns[0].answer_tokens == 1
    assert faster(work, 2.0).talks[3].at_s == 1.5


def test_agent_sessions(tmp_path: Path) -> None:
    """Sessions with equally long tools share them; a sub-agent's calls become turns in its
    place."""

    def call(tokens: int, *runs: int, **more: object) -> dict[str, object]:
        return {"in": tokens, "out": 7, "think_time": 100.0, "h": runs, **more}

    def session(first: int) -> dict[str, Any]:
        sub = {"subagent": "a", "tool_tokens": 512, "requests": [call(1024, 900, 16)]}
        calls = [call(1536, first, 24), sub, call(2048, first, 32), call(70_000, first, 1000)]
        return {"block_size": 64, "tool_tokens": 1024, "requests": calls}

    plain = session(1)
    plain["requests"][0]["hash_ids"] = [*range(1, 25)]  # as published; the other is in runs
    del plain["requests"][0]["h"]
    work = agent_sessions(write(tmp_path / "t.jsonl", plain, session(1)))
    one, two = work.talks
    assert [turn.prompt_tokens for turn in one.turns] == [1536, 1024, 2048], "the last is too long"
    assert one.turns[2].keys[:3] == one.turns[0].keys
    assert one.turns[0].keys[:2] == two.turns[0].keys[:2], "1,024 tokens of tools"
    assert one.turns[0].keys[2] != two.turns[0].keys[2], "the same id in another session"
    assert one.turns[1].keys[0] == two.turns[1].keys[0] != one.turns[0].keys[0]
    assert one.turns[1].think_s == 60.0
    starts = [talk.at_s for talk in shuffled_starts(work, 0.1, 1).talks]
    assert 0 < starts[0] < starts[1]


@pytest.mark.parametrize("read", [lambda path: mooncake(path, 1), agent_sessions])
def test_a_bad_line_is_named(tmp_path: Path, read: Callable[[Path], Work]) -> None:
    """The error names the file, the line and what is wrong."""
    path = write(tmp_path / "t.jsonl", {"timestamp": "now"})
    with pytest.raises(TraceError, match=r"t\.jsonl, line 1: "):
        read(path)


def test_a_folder_of_traces(tmp_path: Path) -> None:
    """Existing traces become columns; a folder without any is an error."""
    with pytest.raises(ValueError, match=r"has none of mooncake/conversation_trace\.jsonl"):
        columns(tmp_path)
    (tmp_path / "agent_sessions").mkdir()
    write(tmp_path / "agent_sessions" / "sessions.jsonl")
    names = [column.name for column in columns(tmp_path)]
    assert names[:3] == ["sessions x0.1", "sessions x0.3", "groups"]
    assert next(column.name for column in columns(None)) == "groups"
