"""Tests a large tokenizer in a separate process.

Reading a large `tokenizer.json` with `tokenizers` holds the GIL for a third of a second, and every
stream would wait; `fastokens` releases it. So the reference is read and compared with fastokens in
the other process, and if both agree, only fastokens is loaded here. A tokenizer in another format
is converted to a `tokenizer.json` there too.
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

from router.rendering.added import SPLIT, add
from router.rendering.convert import converted
from router.rendering.folder import TOKENIZER, BadFolder, read_folder
from router.rendering.tokenizer import Fast, Reference, Tokenizer, load

log = logging.getLogger("warmroute.tokenizers")

#: Largest `tokenizer.json`, in bytes, that is read in this process, in a few milliseconds.
SMALL = 1 << 20
#: Seconds that a trial may take.
PATIENCE_S = 90.0
#: Uses exactly this process's module path.
_RUN = "import sys; sys.path = sys.argv[2:]; from router.rendering.trial import main; main()"


class Outcome(NamedTuple):
    """The result of a trial."""

    fast: bool = False
    """Whether fastokens may be used."""
    why: str = ""
    text: str | None = None
    """Content to read instead of the file, if the configuration adds tokens to it or there is no
    file."""
    special_tokens: dict[str, str] | None = None
    """Special tokens given to templates, by attribute, if the folder does not say."""
    refusal: str = ""
    """Why there is no tokenizer."""


class Opened(NamedTuple):
    """A tokenizer, and what else was found out."""

    tokenizer: Tokenizer
    why: str
    """Why this library was chosen."""
    special_tokens: Mapping[str, str] | None = None


def opened(path: Path) -> Opened:
    """Return what `load` returns, while holding the GIL only briefly.

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
    """Open the tokenizer that the trial was about."""
    if outcome.text is None:
        return Fast(fastokens.Tokenizer.from_file(str(path / TOKENIZER)))
    if outcome.fast:
        return Fast(fastokens.Tokenizer.from_json_str(outcome.text))
    tokenizer = HuggingFaceTokenizer.from_str(outcome.text)
    tokenizer.encode_special_tokens = bool(read_folder(path).config.get(SPLIT))
    return Reference(tokenizer)


def _elsewhere(path: Path) -> Outcome | None:
    """Run the trial; None if it gives no answer, for whatever reason."""
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
    """Load the tokenizer in this process and return the outcome. Raises BadFolder."""
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
    """Print the outcome for the folder in the first argument."""
    try:
        outcome = tried(Path(sys.argv[1]))
    except BadFolder as bad:
        outcome = Outcome(refusal=str(bad))
    print(json.dumps(outcome))
