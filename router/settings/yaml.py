"""Reads YAML 1.2 into plain data, without any tags, and keeps the place of every value.

It reads ruamel's composed nodes, not constructed objects: nodes know the place of every value, also
in lists, flow mappings and aliases, and no object is ever constructed from a tag.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from router.settings.errors import KeyPath, Problem, SettingsError, dotted

MAX_VALUES = 100_000
"""Most values in one file, with aliases expanded: a few lines of aliases can mean billions."""
_PREFIX = "tag:yaml.org,2002:"
_TEXT = {_PREFIX + name for name in ("str", "timestamp", "value", "merge")}
_UNCLOSED = ("end of stream", "expected ',' or", "quoted scalar", "simple key")
# Parts of ruamel's messages → advice for operators. Its own messages are never shown: they quote
# the file, and may so reveal a secret.
_SENTENCES = {
    "'\\t' that cannot start": "a tab cannot indent or start a value; use spaces",
    "cannot start any token": "this character cannot start a value; put the value in quotes",
    "undefined alias": "an alias (*) refers to an anchor (&) that does not exist above",
    "another document": "a second document starts here (---); give only one",
    "mapping values are not allowed": 'a ":" is not expected here; check the indentation, or put'
    " the value in quotes",
    "expected <block end>": "this does not fit the lines above; check indentation and quotes",
    "unexpected end of stream": "a quoted text is never closed",
    "expected ',' or": "a list or mapping in brackets is not closed, or a comma is missing",
    "could not find expected ':'": 'a ":" is missing after this key',
    "version 1.* is required": "only YAML 1.2 is read",
}


@dataclass(frozen=True, slots=True)
class Document:
    """The data in a file, and the place of each value."""

    file: str
    data: object
    places: dict[KeyPath, tuple[int, int]]
    """Line and column of each value's key or list item, counted from 1."""
    problems: list[Problem]
    empty: set[KeyPath]
    """Keys without a usable value, already among the problems."""

    def problem(self, path: KeyPath, message: str, suggestion: str | None = None) -> Problem:
        """Make a problem at `path`, or at its closest parent that is in the file."""
        while path and path not in self.places:
            path = path[:-1]
        line, column = self.places.get(path, (1, 1))
        return Problem(self.file, line, column, dotted(path), message, suggestion)

    def missing(self, path: KeyPath, message: str) -> Problem:
        """Make a problem for a missing key, at the mapping that lacks it."""
        line, column = self.places.get(path[:-1], (1, 1))
        return Problem(self.file, line, column, dotted(path), message)


def parse(text: str, file: str) -> Document:
    """Read one document. Raises SettingsError if it is not valid YAML, or not a mapping."""
    node = _compose(text, file)
    if node is None or node.tag == _PREFIX + "null":
        raise SettingsError([Problem(file, None, None, "", "is empty; it needs at least workers")])
    document = _read(node, _Reader(Document(file, None, {}, [], set())))
    if not isinstance(document.data, dict):
        problem = document.problem((), "must be a mapping of settings, such as workers: [...]")
        raise SettingsError([*document.problems, problem])
    return document


def parse_all(text: str, file: str) -> list[Document]:
    """Read all documents of a file as Kubernetes does: a key without a value is ignored.

    Raises SettingsError if it is not valid YAML.
    """
    nodes = [node for node in _compose_all(text, file) if node is not None]
    return [_read(node, _Reader(Document(file, None, {}, [], set()), voids=True)) for node in nodes]


def _read(node: Node, reader: "_Reader") -> Document:
    try:
        data = reader.value(node, (), node)
    except _TooMuchError as error:
        file = reader.document.file
        raise SettingsError([Problem(file, error.line, None, "", str(error))]) from None
    return replace(reader.document, data=data)


def _compose(text: str, file: str) -> Node | None:
    nodes = _composed(lambda yaml: [yaml.compose(text)], text, file)
    return nodes[0]


def _compose_all(text: str, file: str) -> list[Node | None]:
    return _composed(lambda yaml: list(yaml.compose_all(text)), text, file)


def _composed(how: Callable[[YAML], list[Node | None]], text: str, file: str) -> list[Node | None]:
    yaml = YAML(typ="safe", pure=True)
    yaml.composer.warn_double_anchors = False
    try:
        nodes = how(yaml)
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        message = f"the character U+{error.character:04X} is not allowed"
        raise SettingsError([Problem(file, line, None, "", message)]) from None
    except MarkedYAMLError as error:
        raise SettingsError([_syntax(error, file)]) from None
    except RecursionError:
        raise SettingsError([Problem(file, None, None, "", "is nested too deeply")]) from None
    except Exception:  # noqa: BLE001  # on odd documents ruamel raises whatever it stumbled over
        raise SettingsError([Problem(file, None, None, "", "is not valid YAML")]) from None
    return nodes


def _syntax(error: MarkedYAMLError, file: str) -> Problem:
    reason = f"{error.problem} {error.context}"
    opened = any(words in reason for words in _UNCLOSED) and error.context_mark
    mark = opened or error.problem_mark or error.context_mark
    message = next((plain for words, plain in _SENTENCES.items() if words in reason), None)
    line, column = (mark.line + 1, mark.column + 1) if mark else (None, None)
    return Problem(file, line, column, "", message or "this is not valid YAML")


class _TooMuchError(Exception):
    """The document is too large, too deep or recursive."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


@dataclass(slots=True)
class _Reader:
    document: Document
    voids: bool = False
    """Whether keys may have no value; otherwise that is a mistake."""
    inside: list[Node] = field(default_factory=list)
    """The collections being read, outermost first: no alias may lead back to one of them."""
    count: int = 0

    def value(self, node: Node, path: KeyPath, place: Node) -> object:
        """Read a node; `place` is the node that problems point to: its key, if it has one."""
        self._count()
        self.document.places[path] = (place.start_mark.line + 1, place.start_mark.column + 1)
        if isinstance(node, ScalarNode):
            return self._scalar(node, path)
        if node.tag not in {_PREFIX + "map", _PREFIX + "seq"}:
            self._tagged(path)
            return None
        self._enter(node)
        try:
            return self._collection(node, path)
        except RecursionError:
            raise _TooMuchError("is nested too deeply") from None
        finally:
            self.inside.pop()

    def refuse(self, path: KeyPath, message: str, node: Node | None = None) -> None:
        """Record a problem, at `node` if the path has no place of its own, and go on."""
        problem = self.document.problem(path, message)
        if node is not None:
            line, column = node.start_mark.line + 1, node.start_mark.column + 1
            problem = Problem(problem.file, line, column, dotted(path), message)
        self.document.problems.append(problem)

    def _count(self) -> None:
        self.count += 1
        if self.count > MAX_VALUES:
            raise _TooMuchError(f"holds more than {MAX_VALUES} values")

    def _enter(self, node: Node) -> None:
        if any(node is outer for outer in self.inside):
            line = node.start_mark.line + 1
            raise _TooMuchError("an alias leads back to this, which contains it", line)
        self.inside.append(node)

    def _collection(self, node: Node, path: KeyPath) -> object:
        if isinstance(node, SequenceNode):
            items = enumerate(node.value)
            return [self.value(item, (*path, number), item) for number, item in items]
        return {
            key.value: self.value(value, (*path, key.value), key)
            for key, value in self._pairs(node, path)
        }

    def _pairs(self, node: Node, path: KeyPath) -> Iterator[tuple[Node, Node]]:
        """Return keys and values: first merged ones (`<<`), which the node's own override."""
        own: dict[str, tuple[Node, Node]] = {}
        merged: dict[str, tuple[Node, Node]] = {}
        for key, value in node.value:
            if not isinstance(key, ScalarNode) or not _is_plain(key):
                self.refuse(path, "a key must be plain text", key)
            elif key.tag == _PREFIX + "merge":
                for name, pair in self._merge(value, path):
                    merged.setdefault(name, pair)
            elif key.value in own:
                first = own[key.value][0].start_mark.line + 1
                message = f"duplicate key; the first is on line {first}"
                self.refuse((*path, key.value), message, key)
            else:
                own[key.value] = (key, value)
        return iter({**merged, **own}.values())

    def _merge(self, node: Node, path: KeyPath) -> Iterator[tuple[str, tuple[Node, Node]]]:
        sources = node.value if isinstance(node, SequenceNode) else [node]
        for source in sources:
            if not isinstance(source, MappingNode):
                self.refuse(path, "<< merges only mappings", source)
                continue
            self._count()
            self._enter(source)
            for pair in self._pairs(source, path):
                self._count()
                yield pair[0].value, pair
            self.inside.pop()

    def _scalar(self, node: ScalarNode, path: KeyPath) -> object:
        if not _is_text(node.value):
            self.refuse(path, "holds half a character (a lone surrogate)")
            self.document.empty.add(path)
            return None
        if node.tag in _TEXT:
            return str(node.value)
        if node.tag == _PREFIX + "null":
            if not self.voids:
                self.document.empty.add(path)
                self.refuse(path, "has no value; give it one or remove it")
            return None
        if node.tag not in _CONSTRUCT:
            self._tagged(path)
            return None
        try:
            return _CONSTRUCT[node.tag](node)
        except (ValueError, LookupError, OverflowError):
            self.refuse(path, "cannot be read as a number or as true or false")
            self.document.empty.add(path)
            return None

    def _tagged(self, path: KeyPath) -> None:
        self.refuse(path, "a tag (!) is not allowed; only plain text, numbers, lists and mappings")
        self.document.empty.add(path)


def _is_plain(key: ScalarNode) -> bool:
    known = key.tag in _TEXT or key.tag in _CONSTRUCT or key.tag == _PREFIX + "null"
    return known and _is_text(key.value)


def _is_text(value: str) -> bool:
    """Whether a value can be encoded; `"\\ud800"`, a lone surrogate, cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


_scalars: Any = YAML(typ="safe", pure=True).constructor
_CONSTRUCT = {
    _PREFIX + "int": _scalars.construct_yaml_int,
    _PREFIX + "float": _scalars.construct_yaml_float,
    _PREFIX + "bool": _scalars.construct_yaml_bool,
}
