"""Shared by all commands: how they fail, and the options they have in common.

Prints lines only: a server loads this, and none of what tables need.
"""

import ssl
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from router.hyperpod.environment import source_of
from router.hyperpod.fields import KIND
from router.hyperpod.loader import Loaded, take
from router.runtime.quote import shown
from router.settings.checks import LISTEN
from router.settings.errors import SettingsError
from router.settings.files import load_roots, readable
from router.settings.loader import Arguments
from router.settings.types import Address, parse_duration
from strategies import registry

#: The exit code of a command that Ctrl-C ended before it was done.
INTERRUPTED = 130

ConfigFile = Annotated[Path, typer.Option("--config", "-c", help="The settings file, YAML.")]

Workers = Annotated[
    str | None,
    typer.Option(
        envvar="WARMROUTE_WORKERS",
        help="URLs of an InferenceEndpointConfig's workers, separated by commas.",
    ),
]

Strategy = Annotated[
    str | None,
    typer.Option(
        help="How a worker is chosen, where no file says it. Default: prefixaware.",
        autocompletion=registry.names,
    ),
]

Listen = Annotated[
    str | None,
    typer.Option(help="HOST:PORT to listen on, instead of the file's or 127.0.0.1:8080."),
]

Ca = Annotated[
    Path | None,
    typer.Option(
        "--ca",
        help="File of the roots that the certificate at --url must come from, PEM. Default: those"
        " of the system.",
    ),
]


def tell(message: str) -> None:
    """Print a line on stderr, where it is not part of the result."""
    with suppress(OSError):  # a log on a full disk ends no server
        typer.echo(message, err=True)


def fail(message: str, code: int = 1) -> typer.Exit:
    """Print what is wrong; return the exception that ends the command, to be raised."""
    tell(message)
    return typer.Exit(code)


def load(file: Path, workers: str | None) -> Loaded:
    """Read the settings. Raises Exit with 2 if they are wrong."""
    try:
        return take(file, workers)
    except SettingsError as error:
        raise fail(str(error), 2) from None


def arguments(
    words: Sequence[str], strategy: str | None, listen: str | None, workers: str | None
) -> Arguments:
    """Return what is said without a settings file. Raises Exit with 2 if that is not enough."""
    if file := next(filter(is_file, words), None):
        raise fail(f"{file} is a file: give either it alone, or URLs of workers", 2)
    if workers:
        raise fail(f"{source_of(workers)} is for an {KIND}: give only the URLs", 2)
    return Arguments(tuple(words), strategy, address_of(listen) if listen else LISTEN)


def is_file(word: str) -> bool:
    """Whether an argument names a settings file and is no URL, not even one without `http://`."""
    if "://" in word or not word:
        return False
    path = Path(word)
    try:
        return path.suffix in {".yaml", ".yml", ".json"} or path.exists()
    except OSError:  # too long for a name, say
        return False


def address_of(text: str) -> Address:
    """Read the address in `--listen`. Raises Exit with 2."""
    try:
        return Address.parse(text)
    except ValueError as error:
        raise fail(f"--listen: {error}", 2) from None


def url_of(text: str) -> str:
    """Return the URL in `--url` if it is one of a server. Raises Exit with 2."""
    try:
        url = urlsplit(text)
        _ = url.port  # it is read only here
    except ValueError as error:
        raise fail(f"--url: {shown(text)} is not a URL: {error}", 2) from None
    if url.scheme not in {"http", "https"} or not url.hostname:
        raise fail(f"--url: {shown(text)} is not a URL: write http://host:port", 2)
    return text


def trust_of(ca: Path | None, url: str | None) -> ssl.SSLContext | None:
    """Return a context that trusts the roots in `--ca`, None without. Raises Exit with 2."""
    if ca is None:
        return None
    if url is None or urlsplit(url).scheme != "https":
        raise fail("--ca: is of use only with an https:// URL in --url", 2)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        load_roots(context, readable(ca))
    except ValueError as error:
        raise fail(f"--ca: {error}", 2) from None
    return context


def key_of(text: str | None) -> str | None:
    """Return the key in `--api-key` if a header can carry it. Raises Exit with 2."""
    if text and not (text.isascii() and text.isprintable()):
        raise fail("--api-key: only printable ASCII characters can be sent", 2)
    return text


def duration_of(option: str, text: str) -> float:
    """Read an option in seconds, which must be above 0. Raises Exit with 2."""
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise fail(f"{option}: {error}", 2) from None
    if seconds <= 0:
        raise fail(f"{option}: more than 0s is needed", 2)
    return seconds
