"""The trial of a large tokenizer, in a process of its own.

Reading a large `tokenizer.json` by `tokenizers` takes a third of a second in which no other thread
runs, and every stream would wait. `fastokens` lets others run meanwhile. So the reference is read,
and compared with, over there, and here only what has passed. A tokenizer in another format is made
a `tokenizer.json` over there too.
"""

import json
import logging
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import fastokens  # type: ignore[import-untyped]
import msgspec
from tokenizers import Tokenizer as HuggingFaceTokenizer

from router.identity.added import SPLIT, add
from router.identity.convert import converted
from router.identity.folder import TOKENIZER, BadFolder, read_folder
from router.identity.tokenizer import Fast, Reference, Tokenizer, load

log = logging.getLogger("warmroute.tokenizers")

#: Bytes of a `tokenizer.json` that is read where it is, in a few milliseconds.
SMALL = 1 << 20
#: Seconds that a trial may take.
PATIENCE_S = 90.0
#: Finds its modules where this process found them, and nowhere else.
_RUN = "import sys; sys.path = sys.argv[2:]; from router.identity.trial import main; main()"


class Outcome(NamedTuple):
    """How it ended."""

    fast: bool = False
    """fastokens may be used."""
    why: str = ""
    text: str | None = None
    """What is to be read in place of the file, where the configuration adds tokens to it, or where
    there is none."""
    special_tokens: dict[str, str] | None = None
    """Those that templates are given, by attribute, where the folder does not tell."""
    refusal: str = ""
    """Why there is no tokenizer."""


class Opened(NamedTuple):
    """A tokenizer, and what else was found out of it."""

    tokenizer: Tokenizer
    why: str
    """Why it is that library."""
    special_tokens: Mapping[str, str] | None = None


def opened(path: Path) -> Opened:
    """Return what `load` returns, with little time in which no other thread runs.

    Raises BadFolder.
    """
    file = path / TOKENIZER
    here = file.is_file()
    if here and file.stat().st_size <= SMALL:
        return Opened(*load(path))
    outcome = _elsewhere(path)
    if outcome is None and not here:
        raise BadFolder(f"the tokenizer in {path} took too long to be read")
    if outcome is None:
        return Opened(*load(path))
    if outcome.refusal:
        raise BadFolder(outcome.refusal)
    if here and not outcome.fast:
        return Opened(*load(path))
    return Opened(_passed(path, outcome), outcome.why, outcome.special_tokens)


def _passed(path: Path, outcome: Outcome) -> Tokenizer:
    """Open what the trial was about."""
    if outcome.text is None:
        return Fast(fastokens.Tokenizer.from_file(str(path / TOKENIZER)))
    if outcome.fast:
        return Fast(fastokens.Tokenizer.from_json_str(outcome.text))
    tokenizer = HuggingFaceTokenizer.from_str(outcome.text)
    tokenizer.encode_special_tokens = bool(read_folder(path).config.get(SPLIT))
    return Reference(tokenizer)


def _elsewhere(path: Path) -> Outcome | None:
    """Try it; None if there is no answer, whatever that may mean."""
    try:
        done = subprocess.run(  # noqa: S603 - our own program
            [sys.executable, "-P", "-c", _RUN, str(path), *sys.path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=PATIENCE_S,
            check=True,
        )
        return msgspec.json.decode(done.stdout, type=Outcome)
    except (OSError, subprocess.SubprocessError, msgspec.DecodeError) as error:
        log.debug("no trial of %s: %s", path, error)
        return None


def tried(path: Path) -> Outcome:
    """Load it here, and say how that went. Raises BadFolder."""
    if not (path / TOKENIZER).is_file():
        made = converted(path)
        tokenizer, why = load(path, text=made.text)
        why = f"made a {TOKENIZER} by Transformers; {why}"
        fast = isinstance(tokenizer, Fast)
        return Outcome(fast, why, made.text, dict(made.special_tokens))
    tokenizer, why = load(path)
    if not isinstance(tokenizer, Fast):
        return Outcome(fast=False, why=why)
    reference = HuggingFaceTokenizer.from_file(str(path / TOKENIZER))
    changed = add(reference, read_folder(path).config)
    return Outcome(fast=True, why=why, text=reference.to_str() if changed else None)


def main() -> None:
    """Print the outcome for the folder that is the first argument."""
    try:
        outcome = tried(Path(sys.argv[1]))
    except BadFolder as bad:
        outcome = Outcome(refusal=str(bad))
    print(json.dumps(outcome))
