"""The wall clock may jump, as it does when a machine wakes up or NTP corrects it."""

import ast
from pathlib import Path

import router

SOURCES = Path(router.__file__).parent
#: Modules that may read the wall clock: they print, sign or write down the time, and derive no
#: deadline of a request or a connection from it.
KNOWING = {
    "cli/check.py",
    "fleet/state.py",
    "http/exchange.py",  # the Date header
    "kv/snapshots.py",
    "kv/status.py",
    "reload.py",
    "rendering/sandbox.py",  # templates that name today's date
    "sagemaker/sigv4.py",
    "sessions/sessions.py",  # sessions shared by several routers end at a wall-clock time
    "sessions/store.py",  # once, at the start
}
_OF_DAY = {("time", "time"), ("time", "time_ns"), ("datetime", "now"), ("datetime", "utcnow")}


def _knows(source: Path) -> bool:
    return any(_names_it(node) for node in ast.walk(ast.parse(source.read_text())))


def _names_it(node: ast.AST) -> bool:
    match node:
        case ast.ImportFrom(module="time", names=names):
            return bool({"time", "time_ns"} & {name.name for name in names})
        case ast.Attribute(value=ast.Name(id=module), attr=name):
            return (module, name) in _OF_DAY
    return False


def test_deadlines_hang_on_no_time_of_day() -> None:
    """Only the modules above read the wall clock; all else must use a monotonic one."""
    found = {
        source.relative_to(SOURCES).as_posix() for source in SOURCES.rglob("*.py") if _knows(source)
    }
    assert found == KNOWING
