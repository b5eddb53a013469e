"""Settings from a command line: URLs of workers, a strategy and an address, without a file.

They are checked like those of a file, and can be written as one.
"""

import re
import shlex
from dataclasses import dataclass
from io import StringIO
from typing import Any

from pydantic import ValidationError
from ruamel.yaml import YAML

from router.settings.address import Address
from router.settings.errors import KeyPath, Problem, SettingsError
from router.settings.exposure import LISTEN
from router.settings.messages import translate
from router.settings.model import Settings
from router.settings.types import url_address
from router.settings.yaml import Document

#: Where a file to start from takes the key of its clients from.
KEY = "${WARMROUTE_KEY}"
_AUTHORITY = re.compile(
    r"(?:(https?)://)?(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]+)(?:[/?#]\S*)?"
)


@dataclass(frozen=True, slots=True)
class Arguments:
    """What a command line says."""

    urls: tuple[str, ...]
    strategy: str | None = None
    listen: Address = LISTEN

    def settings(self, *, served: bool = True) -> Settings:
        """Return the settings. Raises SettingsError with every mistake.

        If they are `served`, an address that others can reach is one: only a file has keys.
        """
        data, places = self._data(), dict[KeyPath, tuple[int, int]]()
        places |= {("workers", number): (1, 1) for number in range(len(self.urls))}
        places |= {("strategy",): (1, 1), ("listen",): (1, 1)}
        if not served and not self.listen.is_loopback:
            data["auth"] = "none"
        try:
            return Settings.model_validate(data)
        except ValidationError as error:
            document = Document("", data, places, [], set())
            problems = [self._problem(found) for found in translate(error, document)]
        raise SettingsError(problems)

    def words(self) -> str:
        """Return the arguments as they are typed."""
        words = [*self.urls]
        words += ["--strategy", self.strategy] if self.strategy else []
        words += ["--listen", str(self.listen)] if self.listen != LISTEN else []
        return shlex.join(words)

    def file(self) -> str:
        """Return a settings file that says the same, with a key if others can reach `listen`."""
        settings, said = self.settings(served=False), StringIO()
        data: dict[str, object] = {"listen": str(self.listen)}
        if not self.listen.is_loopback:
            data["auth"] = {"keys": [KEY]}
        data["strategy"] = settings.strategy.name
        data["workers"] = [worker.url for worker in settings.workers]
        yaml: Any = YAML()
        yaml.width = 1 << 20  # no value is folded
        yaml.indent(mapping=2, sequence=4, offset=2)
        yaml.dump(data, said)
        return said.getvalue()

    def _data(self) -> dict[str, object]:
        said: dict[str, object] = {"listen": str(self.listen)}
        said |= {"strategy": self.strategy} if self.strategy else {}
        return {**said, "workers": list(self.urls)}

    def _problem(self, found: Problem) -> Problem:
        """Return a problem as one of the command line."""
        where, message, suggestion = found.field, found.message, found.suggestion
        if number := re.fullmatch(r"workers\[([0-9]+)\]", where):
            suggestion = _meant(self.urls[int(number[1])])
        elif where == "listen":  # it is an address: others can reach it
            message = (
                f"{self.listen} can be reached from other machines, and only a file can say who may"
                f" come in: `warmroute check {self.words()} > warmroute.yaml` writes one that asks"
                " for a key, to be served with --config"
            )
        option = "--" * (where in {"listen", "strategy"})
        return Problem(option + where, None, None, "", message, suggestion)


def _meant(text: str) -> str | None:
    """Return the URLs that were probably meant by what is none, if that can be told."""
    found = [_AUTHORITY.fullmatch(part) for part in text.split(",")]
    urls = [f"{one[1] or 'http'}://{one[2]}{one[3]}" for one in found if one]
    good = len(urls) == len(found) and all(map(_is_url, urls))
    return " ".join(urls) if good and not _is_url(text) else None


def _is_url(text: str) -> bool:
    try:
        url_address(text)
    except ValueError:
        return False
    return True
