"""`Host`: exactly one, and with a valid value; lenient servers have been exploited through it."""

from tests.http.raw.request import BODY, HIDDEN, LENGTH, LINE, OLD_LINE, head
from tests.http.raw.row import SERVED, Row, Value, answered, each, row

ONE = "RFC 9112 section 3.2: none, more than one, or an invalid one is answered with 400"
SYNTAX = "RFC 9110 section 7.2 and RFC 3986 section 3.2.2: uri-host [ ':' port ]"
#: No host of DNS has them, and a comma may be two hosts to somebody else.
UNUSUAL = "RFC 3986 section 3.2.2 allows sub-delims and escapes in a name"
EMPTY = "RFC 9110 section 4.2.1: an http URI without a host is invalid"
OLD = "RFC 9112 section 3.2: only HTTP/1.1 and later need it"
FORWARDED = "RFC 9112 section 3.2: another field does not stand in for it"
UNREAD = "RFC 9112 section 9.3: a body that is not wanted is read, or the connection closed"
ASKED = "RFC 9110 section 7.2: Host is of the one who is asked"


def _host(value: bytes, body: bytes = BODY) -> bytes:
    return head(LINE, b"host: " + value, b"content-length: %d" % len(body)) + body


def _lines(*lines: bytes) -> bytes:
    return head(LINE, *lines, LENGTH) + BODY


GOOD = [
    *(b"a", b"api.example.com", b"example.com.", b"a:8080", b"a:0080", b"a:", b"a:65535"),
    *(b"EXAMPLE.COM", b"my-host", b"my_host", b"~a", b"127.0.0.1", b"127.0.0.1:8080"),
    *(b"999.999.999.999", b"xn--caf-dma.example", b".".join([b"x" * 60] * 4), b"[::1]", b"[::]"),
    *(b"[::1]:8080", b"[2001:db8::8a2e:370:7334]", b"[2001:0db8:0000:0000:0000:8a2e:0370:7334]"),
    *(b"[::ffff:192.0.2.1]", b"[2001:DB8::A]", b"  a \t"),
]
BAD = [
    *(b"u@a", b"u:p@a", b"@a", b"a/b", b"a/", b"/a", b"a/?", b"a?b", b"a#b", b"a#", b"a@b"),
    *(b"a:80/b", b"a:80@b", b"http://a", b"//a", b"a\\b", b"a b", b"a\tb", b"a, b", b"a:x"),
    *(b"a:80x", b"a:-1", b"a:+80", b"a: 80", b"a:0x50", b"a:80:80", b"a:\xef\xbc\x98\xef\xbc\x90"),
    *(b"a\x00b", b"a\x01", b"a\x7f", b"a\rb", b"caf\xe9", b"caf\xc3\xa9", b'"a"', b"[::1"),
    *(b"::1]", b"[]", b"[a]", b"[127.0.0.1]", b"a[::1]", b"[[::1]]", b"[::1]a", b"[::1]:x"),
    *(b"::1", b"[::g]", b"[1::2::3]", b"[:::]", b"[1:2:3:4:5:6:7:8:9]", b"[1:2:3]", b"[12345::]"),
    *(b"a%zz", b"{a}", b"<a>", b"a^b", b"a|b"),
]
#: What may be taken or refused.
DOUBTFUL = [
    *(b"a:65536", b"a:99999", b"a:" + b"9" * 40, b"[fe80::1%25eth0]", b"[v1.a]", b"x" * 300),
]
TWO = [
    *((b"host: a", b"host: b"), (b"host: a", b"host: a"), (b"Host: a", b"HOST: b")),
    *((b"host: a", b"host:"), (b"host:", b"host: a"), (b"host: a", b"x: y", b"host: b")),
    (b"host: a", b"host: a", b"host: a"),
]
MISSPELLED: list[Value] = [
    *(b"host : a", (b"host: a", b"host : b"), (b"host: a", b" host: b"), b" host: a"),
    *(b"host:\r\n a", b"host: a\r\n b", b"host\x00: a"),
]
OLD_BAD: list[Value] = [b"host: a/b", (b"host: a", b"host: a")]

ROWS: list[Row] = [
    *each("host/", SYNTAX, _host, GOOD, SERVED),
    *each("host/", ONE, _host, BAD, answered(400)),
    *each(
        *("host/", UNUSUAL, _host, [b"a,b", b"a;b", b"a!", b"(a)", b"*", b"a%41", b"a%2fb"]),
        answered(400),
    ),
    *each("host/", SYNTAX, _host, DOUBTFUL, SERVED, answered(400)),
    *each("host/", EMPTY, _host, [b"", b"  ", b":80", b":"], answered(400)),
    row("host/none", ONE, _lines(), answered(400)),
    *each("host/two", ONE, _lines, TWO, answered(400)),
    *each("host/", ONE, _lines, MISSPELLED, answered(400)),
    row("host/forwarded-is-not-it", FORWARDED, _lines(b"x-forwarded-host: a"), answered(400)),
    row("host/old-without", OLD, head(OLD_LINE, LENGTH) + BODY, SERVED, answered(400)),
    *each(
        *("host/old", ONE, lambda *lines: head(OLD_LINE, *lines, LENGTH) + BODY, OLD_BAD),
        answered(400),
    ),
    row("host/a-bad-one-hides-no-request", UNREAD, _host(b"a/b", HIDDEN), answered(400)),
    row(
        *("host/is-written-anew", ASKED, _host(b"evil.example"), SERVED),
        never=[b"evil.example"],
    ),
]
