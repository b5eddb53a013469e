"""With promotion, what was loaded from L2 is also on L1, for some minutes or until a miss."""

from strategies.base import Prompt
from strategies.loads import Held
from strategies.promoted import BELIEVED_S, Promoted

PROMPT = Prompt("m", 4160, keys=list(range(1, 65)), ends=range(0, 1 << 20, 64))


def test_whole_blocks_are_believed_for_a_while() -> None:
    """Only whole blocks count, for the worker that loaded them, until they expire."""
    kept = Promoted(1 << 20)
    kept.add(PROMPT, "a", 130, 0.0)
    kept.add(PROMPT, "b", 4160, 0.0)
    kept.add(PROMPT, "c", 63, 0.0)
    assert kept.held(PROMPT, BELIEVED_S - 1) == {"a": 128, "b": 4096}
    assert kept.held(PROMPT, 3 * BELIEVED_S) == {}


def test_one_miss_ends_it() -> None:
    """A miss ends it for that worker; finding as much as believed is no miss."""
    kept = Promoted(1 << 20)
    for name in "ab":
        kept.add(PROMPT, name, 4096, 0.0)
    kept.missed(PROMPT, "a", 4096, 1.0)
    assert set(kept.held(PROMPT, 1.0)) == {"a", "b"}
    kept.missed(PROMPT, "a", 64, 1.0)
    assert set(kept.held(PROMPT, 1.0)) == {"b"}
    kept.forget("b")
    assert len(kept) == 0


def test_keys_over_bytes_are_measured_in_tokens() -> None:
    """If the prompt was not tokenized, block sizes are converted from bytes to tokens."""
    prompt = Prompt("m", 100, keys=[1, 2, 3], ends=range(0, 1 << 20, 64), unit_tokens=0.25)
    kept = Promoted(1 << 20)
    kept.add(prompt, "a", 33, 0.0)
    assert kept.held(prompt, 0.0) == {"a": 32}


def test_held_on_the_host() -> None:
    """L1 takes over what L2 has as well, and nothing from the GPU."""
    assert Held(64, 0, 128).hosted(128) == Held(64, 64, 64)
    assert Held(64, 32, 0).hosted(256) == Held(64, 192, 0)
    assert Held(64, 32, 16).hosted(32) == Held(64, 32, 16)
