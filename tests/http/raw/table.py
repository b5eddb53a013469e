"""The whole table, and where the router deliberately differs from what an RFC says."""

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

#: Rows, by the start of their names, in which the router deliberately differs from an RFC.
DIFFERENCES = {
    "line/version-1.2": (
        "RFC 9110 section 6.2 would have it processed as HTTP/1.1. There is no such version; "
        "who sends it is testing what two readers make of it."
    ),
    "line/protocol-": (
        "RFC 9112 section 3 would have 400. llhttp takes the names RTSP and ICE for HTTP/1.0 "
        "and does not tell; nothing but a proper request of our own ever reaches a worker."
    ),
    "chunk/extension-space": (
        "RFC 9110 section 5.6.3 would have bad white space parsed. llhttp refuses it: nobody is "
        "known to send it, and others were led astray by white space next to chunk sizes."
    ),
    "coding/leading-comma": (
        "RFC 9110 section 5.6.1.2 would have the empty element ignored. One coding is all that "
        "is understood, so a list is refused however it is written."
    ),
    "coding/trailing-comma": "The same.",
    "coding/fields-empty-then-chunked": "The same.",
    "coding/fields-chunked-then-empty": "The same.",
    "coding/trailing-tab": (
        "RFC 9110 section 5.5 would have the tab ignored. llhttp refuses it, though not a space."
    ),
    "host/comma": (
        "RFC 3986 section 3.2.2 allows sub-delims in a name. No host of DNS has them, and a "
        "comma may be two hosts to somebody else."
    ),
    "host/semicolon": "The same.",
    "host/exclamation": "The same.",
    "host/parentheses": "The same.",
    "host/asterisk": "The same.",
    "host/escape": "RFC 3986 section 3.2.2 allows escapes in a name. No host of DNS has them.",
    "host/escaped-slash": "The same.",
    "connection/names-": (
        "RFC 9110 section 7.6.1 would have the named field removed. Without its length, its host "
        "or its key a request is another one; proxies have been made to strip them that way."
    ),
    "method/connect-": (
        "RFC 9112 section 9.3 would have the connection persist after a refusal. What follows a "
        "CONNECT may be meant for another server, so it is closed."
    ),
    "connection/upgrade-": (
        "RFC 9112 section 9.3 would have the connection persist after an Upgrade that was "
        "ignored. What follows may be another protocol's, so it is closed."
    ),
}
