"""Log lines for people or for machines, on standard error. They never contain prompts."""

import logging
import sys
from asyncio import CancelledError
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from router.runtime.log_handler import Unhindered
from router.settings.model import LogSettings


class _Json(logging.Formatter):
    """Writes one JSON object per line; a record's `fields` are keys of it."""

    def __init__(self, place: int | None) -> None:
        super().__init__()
        self._place = {} if place is None else {"process": place}

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            **self._place,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


class _CutOnPurpose(logging.Filter):
    """Drops uvicorn's complaints about answers that are cut off on purpose.

    That is how a client learns that a worker died in mid-answer, which is logged with its reason
    where it happens. And a server that is told to stop ends what has not ended by itself.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        ended = record.exc_info is not None and record.exc_info[0] is CancelledError
        return not ended and "without completing response" not in record.msg


def set_up(settings: LogSettings, place: int | None = None) -> None:
    """Send every log line to standard error in the form asked for.

    `place` marks the lines of one of several processes.
    """
    handler = Unhindered(sys.stderr)
    if settings.format == "json":
        handler.setFormatter(_Json(place))
    else:
        mark = "" if place is None else f"[{place}] "
        handler.setFormatter(logging.Formatter(f"%(asctime)s %(levelname)-7s {mark}%(message)s"))
    logging.basicConfig(level=settings.level.upper(), handlers=[handler], force=True)
    for name in ("httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)  # they log each request, with headers
    logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # it logs each bad upload
    logging.getLogger("uvicorn.error").addFilter(_CutOnPurpose())


def announce(message: str, plainly: Callable[[str], None]) -> None:
    """Write what people wait for, whatever the level; `plainly` does so where lines are plain."""
    for handler in logging.root.handlers:
        if isinstance(handler.formatter, _Json):
            handler.handle(logging.LogRecord("warmroute", logging.INFO, "", 0, message, None, None))
            return
    plainly(message)
