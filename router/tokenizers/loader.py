"""Opens tokenizers: one for equal files, however many models and pools share it.

What is not known of a model's folder is tried in another process first.

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

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import fastokens  # type: ignore[import-untyped]
import msgspec
from tokenizers import Tokenizer as HuggingFaceTokenizer

from router.rendering.folder import (
    OTHERS,
    PATTERNS,
    SPECIAL,
    TOKENIZER,
    BadFolder,
    ModelFolder,
    check_sizes,
    read_folder,
)
from router.rendering.messages import NotReproducible
from router.rendering.mistral import Mistral, MistralsLibrary, mistrals_library
from router.rendering.probes import IMAGE, PROBES
from router.rendering.renderer import TemplateRenderer
from router.rendering.sandbox import TOO_LONG
from router.rendering.tokenizer import (
    SPLIT,
    FastTokenizer,
    ReferenceTokenizer,
    TextTokenizer,
    add_tokens,
    load,
    settings_of_ids,
)
from router.rendering.tokens import LoadedTokenizer, PromptTokenizer, Renderer

log = logging.getLogger("warmroute.tokenizers")

#: Bytes read at a time for a hash.
_HASH_CHUNK_BYTES = 1 << 20
#: Seconds that one thread waits for another that opens the same files.
MAX_OPENING_S = 120.0
#: Largest `tokenizer.json`, in bytes, that is read in this process, in a few milliseconds.
MAX_UNTRIED_BYTES = 1 << 20
#: Seconds that the trial of a tokenizer may take, and that of a folder's templates.
TOKENIZER_TIMEOUT_S, TEMPLATE_TIMEOUT_S = 90.0, 30.0
#: Address space of a process that tries templates.
MAX_TEMPLATE_MEMORY_BYTES = 1 << 30


@dataclass(frozen=True, eq=False)
class OpenedTokenizer:
    """A tokenizer, shared by all folders with equal tokenizer files."""

    tokenizer: "TextTokenizer | MistralsLibrary"
    name: str
    """The library's name."""
    why: str
    """Why this library was chosen."""
    special_tokens: Mapping[str, str] | None = None
    """Special tokens given to templates, by attribute, if the folder does not say."""


class TokenizerCache:
    """Opens folders. May be used by several threads; those that open the same files take turns.

    It holds only weak references, so a tokenizer that is no longer used is freed.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._opening: WeakValueDictionary[str, Lock] = WeakValueDictionary()
        self._opened: WeakValueDictionary[str, OpenedTokenizer] = WeakValueDictionary()
        self._loaded: WeakValueDictionary[str, LoadedTokenizer] = WeakValueDictionary()

    def open(
        self,
        path: Path,
        template: Path | None = None,
        keywords: Mapping[str, Any] | None = None,
        mode: str = "auto",
    ) -> LoadedTokenizer:
        """Read a model's folder, or reuse what was read from an equal one. Raises BadFolder.

        `template` is the file of a chat template that replaces the model's own. `keywords` are
        those that engines give every template. `mode` is how engines tokenize: `hf`, `mistral`, or
        `auto`, which depends on the folder. Takes a second for a large tokenizer.
        """
        files = _hashes(path)
        text = _template(template)
        key = json.dumps([files, text, dict(keywords or {}), mode], sort_keys=True)
        with self._turn(key, path):
            tokenizer = self._loaded.get(key)
            if tokenizer is None:
                folder = read_folder(path)
                by_mistral = mode == "mistral" or (mode == "auto" and folder.mistral)
                opened = self._open(folder, files, by_mistral=by_mistral)
                if text is not None:
                    folder = replace(folder, templates={"default": text}, processor=None)
                sure = by_mistral or not folder.rebuilt or TOKENIZER not in files
                exact = PromptTokenizer(_renderer(folder, opened, keywords or {}))
                tokenizer = LoadedTokenizer(path, exact, opened.name, opened.why, opened, sure)
                self._loaded[key] = tokenizer
            return tokenizer

    def _open(
        self, folder: ModelFolder, files: Mapping[str, str], *, by_mistral: bool
    ) -> OpenedTokenizer:
        config = settings_of_ids(folder.config)
        counting = [by_mistral, (not by_mistral and files.get(TOKENIZER)) or files, config]
        key = json.dumps(counting, sort_keys=True)
        with self._turn(key, folder.path):
            opened = self._opened.get(key)
            if opened is None and by_mistral:
                library = mistrals_library(folder.path)
                opened = OpenedTokenizer(library, Mistral.name, "the model is in Mistral's format")
            elif opened is None:
                opened = open_tokenizer(folder.path)
            self._opened[key] = opened
            return opened

    @contextmanager
    def _turn(self, key: str, path: Path) -> Iterator[None]:
        """Let one thread at a time open the files with that key. Raises BadFolder.

        A thread that never finishes, because its template does not, blocks only those with the same
        key.
        """
        with self._lock:
            turn = self._opening.setdefault(key, Lock())
        if not turn.acquire(timeout=MAX_OPENING_S):
            raise BadFolder(f"{path} is still being opened, for more than {MAX_OPENING_S:g}s")
        try:
            yield
        finally:
            turn.release()


def _renderer(
    folder: ModelFolder, opened: OpenedTokenizer, keywords: Mapping[str, Any]
) -> Renderer:
    tokenizer = opened.tokenizer
    if not isinstance(tokenizer, FastTokenizer | ReferenceTokenizer):
        return Mistral(tokenizer, keywords)  # type: ignore[arg-type] # it is no other
    if opened.special_tokens is not None:
        folder = replace(folder, special_tokens=dict(opened.special_tokens))
    try_templates(folder, keywords)
    return TemplateRenderer(folder, tokenizer, keywords=keywords)


def _hashes(path: Path) -> dict[str, str]:
    """Return the hash of every relevant file, by name. Raises BadFolder."""
    try:
        files = {file for pattern in PATTERNS for file in path.glob(pattern) if file.is_file()}
        check_sizes(files)
        return {str(file.relative_to(path)): _hash(file) for file in files}
    except OSError as error:
        raise BadFolder(f"{path} cannot be read: {error.strerror or error}") from None


def _hash(file: Path) -> str:
    digest = sha256()
    with file.open("rb") as stream:
        while piece := stream.read(_HASH_CHUNK_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def _template(path: Path | None) -> str | None:
    try:
        return path.read_text(encoding="utf-8") if path else None
    except (OSError, UnicodeDecodeError) as error:
        raise BadFolder(f"the chat template {path} cannot be read: {error}") from None


#: Uses exactly this process's module path.
_RUN = "import sys; sys.path = sys.argv[2:]; import router.tokenizers.loader as loader; loader.{}()"


def _run_elsewhere(function: str, path: Path, timeout: float, question: bytes = b"") -> bytes:
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
    named = f"the chat template in {folder.path}"
    try:
        refusal = _run_elsewhere("print_template_refusal", folder.path, timeout, question)
    except subprocess.TimeoutExpired:
        raise BadFolder(f"{named} was not done with our short chats after {timeout:g}s") from None
    except subprocess.CalledProcessError as error:
        raise BadFolder(f"{named} ended the process that tried it ({error.returncode})") from None
    except OSError as error:
        raise BadFolder(f"{named} cannot be tried: {error}") from None
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
    with suppress(ImportError, OSError, ValueError):  # where there is no such limit, time remains
        import resource  # noqa: PLC0415 - not on Windows

        limit = MAX_TEMPLATE_MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        renderer = TemplateRenderer(folder, _NoTokenizer(), keywords=given.keywords)
        refusal = _explosion(PromptTokenizer(renderer))
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


def open_tokenizer(path: Path, max_untried_bytes: int = MAX_UNTRIED_BYTES) -> OpenedTokenizer:
    """Open what `load` opens, while holding the GIL only briefly. Raises BadFolder."""
    file = path / TOKENIZER
    is_file = file.is_file()
    outcome = None
    if not is_file or file.stat().st_size > max_untried_bytes:
        outcome = _outcome(path)
        if outcome is None and not is_file:
            raise BadFolder(f"the tokenizer in {path} took too long to be read")
        if outcome is not None and outcome.refusal:
            raise BadFolder(outcome.refusal)
    if outcome is None or (is_file and not outcome.fast):
        tokenizer, why = load(path)
        return OpenedTokenizer(tokenizer, tokenizer.name, why)
    tokenizer = _passed(path, outcome)
    return OpenedTokenizer(tokenizer, tokenizer.name, outcome.why, outcome.special_tokens)


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
        output = _run_elsewhere("print_outcome", path, TOKENIZER_TIMEOUT_S)
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
