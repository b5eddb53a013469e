"""What is not known of a model's folder is tried in another process first.

A chat template is a program. One that never ends, or that takes all memory, does so in a process
that is stopped: it renders the probes there, within a deadline and an address space of a given
size. Templates that pass are rendered in this process from then on.

Reading a large `tokenizer.json` with `tokenizers` holds the GIL for a third of a second, and every
stream would wait; `fastokens` releases it. So the reference is read and compared with fastokens in
the other process, and if both agree, only fastokens is loaded here.

SentencePiece, tiktoken and older formats are converted to a `tokenizer.json` there too, by
Transformers, as engines do when they load a model (vLLM tokenizers/hf.py). That library is large,
so it is an extra, `warmroute[transformers]`. It needs no PyTorch, and no code from a model's folder
is run.
"""

import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import fastokens  # type: ignore[import-untyped]
import msgspec
from tokenizers import Tokenizer as HuggingFaceTokenizer

from router.rendering.errors import BadFolder, NotReproducible
from router.rendering.folder import (
    OTHERS,
    SPECIAL,
    TOKENIZER,
    ModelFolder,
    check_sizes,
    read_folder,
)
from router.rendering.renderer import TemplateRenderer
from router.rendering.sandbox import TOO_LONG
from router.rendering.tokenizer import (
    SPLIT,
    FastTokenizer,
    ReferenceTokenizer,
    TextTokenizer,
    add_tokens,
    load,
)
from router.rendering.tokens import PromptTokenizer
from router.tokenizers.probes import IMAGE, PROBES

log = logging.getLogger("warmroute.tokenizers")

#: Largest `tokenizer.json`, in bytes, that is read in this process, in a few milliseconds.
MAX_UNTRIED_BYTES = 1 << 20
#: Seconds that the trial of a tokenizer may take, and that of a folder's templates.
TOKENIZER_TIMEOUT_S, TEMPLATE_TIMEOUT_S = 90.0, 30.0
#: Address space of a process that tries templates.
MAX_TEMPLATE_MEMORY_BYTES = 1 << 30

#: Uses exactly this process's module path.
_RUN = "import sys; sys.path = sys.argv[2:]; import router.tokenizers.trial as trial; trial.{}()"


def _tried_elsewhere(function: str, path: Path, timeout: float, question: bytes = b"") -> bytes:
    """Return the output of a function of this module. Raises OSError, SubprocessError."""
    return subprocess.run(  # noqa: S603 - our own program
        [sys.executable, "-P", "-c", _RUN.format(function), str(path), *sys.path],
        input=question,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=timeout,
        check=True,
    ).stdout


class _Templates(msgspec.Struct):
    """What determines how a folder's templates are rendered."""

    templates: dict[str, str]
    processor: str | None
    special_tokens: dict[str, str]
    keywords: dict[str, Any]


def try_templates(
    folder: ModelFolder, keywords: Mapping[str, Any], timeout: float = TEMPLATE_TIMEOUT_S
) -> None:
    """Raise BadFolder if a folder's templates cannot be rendered in reasonable time and space."""
    if not folder.templates and folder.processor is None:
        return
    templates = _Templates(
        folder.templates, folder.processor, folder.special_tokens, dict(keywords)
    )
    question = msgspec.json.encode(templates)
    try:
        refusal = _tried_elsewhere("print_template_refusal", folder.path, timeout, question)
    except subprocess.TimeoutExpired:
        why = f"was not done with our short chats after {timeout:g}s"
        raise BadFolder(f"the chat template in {folder.path} {why}") from None
    except subprocess.CalledProcessError as error:
        why = f"ended the process that tried it ({error.returncode})"
        raise BadFolder(f"the chat template in {folder.path} {why}") from None
    except OSError as error:
        raise BadFolder(f"the chat template in {folder.path} cannot be tried: {error}") from None
    if refusal:
        raise BadFolder(refusal.decode())


def print_template_refusal() -> None:
    """Print why the templates described on the standard input are refused; nothing if they are not.

    The folder is the first argument.
    """
    given = msgspec.json.decode(sys.stdin.buffer.read(), type=_Templates)
    folder = ModelFolder(
        Path(sys.argv[1]), given.templates, given.special_tokens, processor=given.processor
    )
    _limit_memory()
    try:
        refusal = _explosion(
            PromptTokenizer(TemplateRenderer(folder, _NoTokenizer(), keywords=given.keywords))
        )
    except BadFolder as bad:
        refusal = str(bad)
    else:
        refusal = refusal and f"the chat template in {folder.path} {refusal}"
    sys.stdout.buffer.write(refusal.encode())


def _explosion(exact: PromptTokenizer) -> str:
    for probe in PROBES:
        try:
            exact.ids(probe.endpoint, msgspec.json.encode(probe.body))
        except NotReproducible as error:  # those that a template refuses say nothing
            if error.reason == TOO_LONG:
                return f"makes too much of the probe {probe.name!r}"
    with suppress(NotReproducible):
        exact.head(IMAGE.endpoint, msgspec.json.encode(IMAGE.body))
    return ""


def _limit_memory() -> None:
    with suppress(ImportError, OSError, ValueError):  # where there is no such limit, time remains
        import resource  # noqa: PLC0415 - not on Windows

        limit = MAX_TEMPLATE_MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


class _NoTokenizer:
    """Makes no tokens: only the text is of interest."""

    name = "none"
    short = 0

    def encode(self, text: str, *, special: bool) -> bytes:  # noqa: ARG002 - the protocol's
        """Return no ids."""
        return b""


class TrialOutcome(NamedTuple):
    """The result of a tokenizer's trial."""

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


class OpenedTokenizer(NamedTuple):
    """A tokenizer, and what else came to light."""

    tokenizer: TextTokenizer
    why: str
    """Why this library was chosen."""
    special_tokens: Mapping[str, str] | None = None


def open_tokenizer(path: Path, max_untried_bytes: int = MAX_UNTRIED_BYTES) -> OpenedTokenizer:
    """Return what `load` returns, while holding the GIL only briefly. Raises BadFolder."""
    file = path / TOKENIZER
    is_file = file.is_file()
    if is_file and file.stat().st_size <= max_untried_bytes:
        return OpenedTokenizer(*load(path))
    outcome = _outcome(path)
    if outcome is None and not is_file:
        raise BadFolder(f"the tokenizer in {path} took too long to be read")
    if outcome is None:
        return OpenedTokenizer(*load(path))
    if outcome.refusal:
        raise BadFolder(outcome.refusal)
    if is_file and not outcome.fast:
        return OpenedTokenizer(*load(path))
    return OpenedTokenizer(_passed(path, outcome), outcome.why, outcome.special_tokens)


def _passed(path: Path, outcome: TrialOutcome) -> TextTokenizer:
    """Open the tokenizer that the trial was about."""
    if outcome.text is None:
        return FastTokenizer(fastokens.Tokenizer.from_file(str(path / TOKENIZER)))
    if outcome.fast:
        return FastTokenizer(fastokens.Tokenizer.from_json_str(outcome.text))
    tokenizer = HuggingFaceTokenizer.from_str(outcome.text)
    tokenizer.encode_special_tokens = bool(read_folder(path).config.get(SPLIT))
    return ReferenceTokenizer(tokenizer)


def _outcome(path: Path) -> TrialOutcome | None:
    """Run the trial; None if it gives no answer, for whatever reason."""
    try:
        output = _tried_elsewhere("print_outcome", path, TOKENIZER_TIMEOUT_S)
        return msgspec.json.decode(output, type=TrialOutcome)
    except (OSError, subprocess.SubprocessError, msgspec.DecodeError) as error:
        log.debug("no trial of %s: %s", path, error)
        return None


def print_outcome() -> None:
    """Print the outcome for the folder in the first argument."""
    try:
        outcome = load_both(Path(sys.argv[1]))
    except BadFolder as bad:
        outcome = TrialOutcome(refusal=str(bad))
    sys.stdout.buffer.write(msgspec.json.encode(outcome))


def load_both(path: Path) -> TrialOutcome:
    """Load the tokenizer in this process and return the outcome. Raises BadFolder."""
    if not (path / TOKENIZER).is_file():
        text, special_tokens = convert(path)
        tokenizer, why = load(path, text=text)
        why = f"made a {TOKENIZER} by Transformers; {why}"
        return TrialOutcome(isinstance(tokenizer, FastTokenizer), why, text, special_tokens)
    tokenizer, why = load(path)
    if not isinstance(tokenizer, FastTokenizer):
        return TrialOutcome(fast=False, why=why)
    reference = HuggingFaceTokenizer.from_file(str(path / TOKENIZER))
    changed = add_tokens(reference, read_folder(path).config)
    return TrialOutcome(fast=True, why=why, text=reference.to_str() if changed else None)


def convert(path: Path) -> tuple[str, dict[str, str]]:
    """Return the `tokenizer.json` that Transformers makes of a folder, and its special tokens.

    These are those given to templates, by attribute, including those of the model's class. Takes
    seconds. Raises BadFolder.
    """
    if find_spec("transformers") is None:
        raise BadFolder(
            f"{path} holds no {TOKENIZER}; what it holds instead is read by Transformers:"
            " pip install 'warmroute[transformers]'"
        )
    check_sizes(file for pattern in OTHERS for file in path.glob(pattern))
    os.environ["HF_HUB_OFFLINE"] = "1"  # read at import
    from transformers import AutoTokenizer  # noqa: PLC0415 - slow to import, and seldom needed

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            path, trust_remote_code=False, local_files_only=True
        )
        text = tokenizer.backend_tokenizer.to_str()
    except Exception as error:  # noqa: BLE001 - that library raises all kinds of exceptions
        message = str(error).split("\n")[0][:200]
        raise BadFolder(f"Transformers makes no {TOKENIZER} of {path}: {message}") from None
    named = {name: getattr(tokenizer, name, None) for name in SPECIAL}
    return text, {name: str(token) for name, token in named.items() if token is not None}
