"""The whole table. Where the router deliberately differs from an RFC, its row says so."""

from tests.http.raw import (
    chunks,
    codings,
    connections,
    conversations,
    expectations,
    fields,
    hosts,
    lengths,
    methods,
    passing,
    request_lines,
    targets,
)
from tests.http.raw.row import Row

ROWS: list[Row] = [
    *lengths.ROWS,
    *codings.ROWS,
    *chunks.ROWS,
    *request_lines.ROWS,
    *targets.ROWS,
    *hosts.ROWS,
    *fields.ROWS,
    *methods.ROWS,
    *connections.ROWS,
    *expectations.ROWS,
    *conversations.ROWS,
    *passing.ROWS,
]
