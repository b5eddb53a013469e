"""The trial of a large tokenizer, in a process of its own.

Reading a large `tokenizer.json` by `tokenizers` takes a third of a second in which no other thread
runs, and every stream would wait. `fastokens` lets others run meanwhile. So the reference is read,
and compared with, over there, and here only what has passed.
"""

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import fastokens  # type: ignore[import-untyped]
import msgspec
from tokenizers import Tokenizer as HuggingFaceTokenizer

from router.identity.added import add
from router.identity.folder import TOKENIZER, read_folder
from router.identity.tokenizer import Fast, Tokenizer, load

log = logging.getLogger("warmroute.tokenizers")

#: Bytes of a `tokenizer.json` that is read where it is, in a few milliseconds.
SMALL = 1 << 20
#: Seconds that a trial may take.
PATIENCE_S = 90.0
#: Finds its modules where this process found them, and nowhere else.
_RUN = "import sys; sys.path = sys.argv[2:]; from router.identity.trial import main; main()"


class Outcome(NamedTuple):
    """How it ended."""

    fast: bool
    """fastokens may be used."""
    why: str
    text: str | None
    """What it is to read in place of the file, where the configuration adds tokens."""


def opened(path: Path) -> tuple[Tokenizer, str]:
    """Return what `load` returns, with little time in which no other thread runs.

    Raises BadFolder.
    """
    file = path / TOKENIZER
    if file.is_file() and file.stat().st_size > SMALL:
        outcome = _elsewhere(path)
        if outcome is not None and outcome.fast:
            if outcome.text is None:
                return Fast(fastokens.Tokenizer.from_file(str(file))), outcome.why
            return Fast(fastokens.Tokenizer.from_json_str(outcome.text)), outcome.why
    return load(path)


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
    tokenizer, why = load(path)
    if not isinstance(tokenizer, Fast):
        return Outcome(fast=False, why=why, text=None)
    reference = HuggingFaceTokenizer.from_file(str(path / TOKENIZER))
    changed = add(reference, read_folder(path).config)
    return Outcome(fast=True, why=why, text=reference.to_str() if changed else None)


def main() -> None:
    """Print the outcome for the folder that is the first argument."""
    print(json.dumps(tried(Path(sys.argv[1]))))
