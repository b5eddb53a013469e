"""`Host`: exactly one, and with a valid value; lenient servers have been exploited through it."""

from tests.http.raw.request import BODY, HIDDEN, LENGTH, LINE, head
from tests.http.raw.row import Row, answered, row, served

ONE = "RFC 9112 section 3.2: none, more than one, or an invalid one is answered with 400"
SYNTAX = "RFC 9110 section 7.2 and RFC 3986 section 3.2.2: uri-host [ ':' port ]"
EMPTY = "RFC 9110 section 4.2.1: an http URI without a host is invalid"
OLD = "RFC 9112 section 3.2: only HTTP/1.1 and later need it"

_OLD = b"POST /v1/completions HTTP/1.0"


def _host(value: bytes, body: bytes = BODY) -> bytes:
    return head(LINE, b"host: " + value, b"content-length: %d" % len(body)) + body


GOOD = {
    "name": b"a",
    "dots": b"api.example.com",
    "dot-last": b"example.com.",
    "port": b"a:8080",
    "port-zero-padded": b"a:0080",
    "port-empty": b"a:",
    "port-highest": b"a:65535",
    "upper-case": b"EXAMPLE.COM",
    "hyphen": b"my-host",
    "underscore": b"my_host",
    "tilde": b"~a",
    "address": b"127.0.0.1",
    "address-and-port": b"127.0.0.1:8080",
    "numbers-like-an-address": b"999.999.999.999",
    "punycode": b"xn--caf-dma.example",
    "long": b".".join([b"x" * 60] * 4),
    "ipv6-loopback": b"[::1]",
    "ipv6-any": b"[::]",
    "ipv6-and-port": b"[::1]:8080",
    "ipv6-short": b"[2001:db8::8a2e:370:7334]",
    "ipv6-full": b"[2001:0db8:0000:0000:0000:8a2e:0370:7334]",
    "ipv6-mapped": b"[::ffff:192.0.2.1]",
    "ipv6-upper-case": b"[2001:DB8::A]",
    "space-around": b"  a \t",
}

BAD = {
    "user": b"u@a",
    "user-and-password": b"u:p@a",
    "empty-user": b"@a",
    "path": b"a/b",
    "slash": b"a/",
    "slash-first": b"/a",
    "slash-and-query": b"a/?",
    "query": b"a?b",
    "fragment": b"a#b",
    "empty-fragment": b"a#",
    "at-after": b"a@b",
    "port-and-path": b"a:80/b",
    "port-and-user": b"a:80@b",
    "scheme": b"http://a",
    "scheme-relative": b"//a",
    "backslash": b"a\\b",
    "space": b"a b",
    "tab": b"a\tb",
    "comma-and-space": b"a, b",
    "port-letters": b"a:x",
    "port-letters-after": b"a:80x",
    "port-negative": b"a:-1",
    "port-plus": b"a:+80",
    "port-space": b"a: 80",
    "port-hex": b"a:0x50",
    "port-twice": b"a:80:80",
    "port-full-width": b"a:\xef\xbc\x98\xef\xbc\x90",
    "nul": b"a\x00b",
    "control": b"a\x01",
    "delete": b"a\x7f",
    "bare-cr": b"a\rb",
    "latin": b"caf\xe9",
    "utf-8": b"caf\xc3\xa9",
    "quote": b'"a"',
    "brackets-open": b"[::1",
    "brackets-close": b"::1]",
    "brackets-empty": b"[]",
    "brackets-name": b"[a]",
    "brackets-address": b"[127.0.0.1]",
    "brackets-inside": b"a[::1]",
    "brackets-twice": b"[[::1]]",
    "brackets-after": b"[::1]a",
    "brackets-bad-port": b"[::1]:x",
    "ipv6-bare": b"::1",
    "ipv6-bad-digit": b"[::g]",
    "ipv6-two-gaps": b"[1::2::3]",
    "ipv6-three-colons": b"[:::]",
    "ipv6-too-long": b"[1:2:3:4:5:6:7:8:9]",
    "ipv6-too-short": b"[1:2:3]",
    "ipv6-long-group": b"[12345::]",
    "bad-escape": b"a%zz",
    "brace": b"{a}",
    "less": b"<a>",
    "caret": b"a^b",
    "pipe": b"a|b",
}

ROWS: list[Row] = [
    *(row(f"host/{name}", SYNTAX, _host(value), served(BODY)) for name, value in GOOD.items()),
    *(row(f"host/{name}", ONE, _host(value), answered(400)) for name, value in BAD.items()),
    *(
        row(f"host/{name}", SYNTAX, _host(value), answered(400))
        for name, value in {
            "comma": b"a,b",
            "semicolon": b"a;b",
            "exclamation": b"a!",
            "parentheses": b"(a)",
            "asterisk": b"*",
            "escape": b"a%41",
            "escaped-slash": b"a%2fb",
        }.items()
    ),
    *(
        row(f"host/{name}", SYNTAX, _host(value), served(BODY), answered(400))
        for name, value in {
            "port-too-high": b"a:65536",
            "port-99999": b"a:99999",
            "port-of-forty-digits": b"a:" + b"9" * 40,
            "ipv6-zone": b"[fe80::1%25eth0]",
            "ip-of-the-future": b"[v1.a]",
            "name-of-300-letters": b"x" * 300,
        }.items()
    ),
    row("host/empty", EMPTY, _host(b""), answered(400)),
    row("host/only-space", EMPTY, _host(b"  "), answered(400)),
    row("host/only-port", EMPTY, _host(b":80"), answered(400)),
    row("host/only-colon", EMPTY, _host(b":"), answered(400)),
    row("host/none", ONE, head(LINE, LENGTH) + BODY, answered(400)),
    *(
        row(f"host/two-{name}", ONE, head(LINE, *lines, LENGTH) + BODY, answered(400))
        for name, lines in {
            "different": (b"host: a", b"host: b"),
            "equal": (b"host: a", b"host: a"),
            "in-different-case": (b"Host: a", b"HOST: b"),
            "one-empty": (b"host: a", b"host:"),
            "one-empty-first": (b"host:", b"host: a"),
            "apart": (b"host: a", b"x: y", b"host: b"),
            "three": (b"host: a", b"host: a", b"host: a"),
        }.items()
    ),
    *(
        row(f"host/{name}", ONE, head(LINE, *lines, LENGTH) + BODY, answered(400))
        for name, lines in {
            "space-before-colon": (b"host : a",),
            "two-and-one-with-space-before-colon": (b"host: a", b"host : b"),
            "two-and-one-with-space-first": (b"host: a", b" host: b"),
            "space-first": (b" host: a",),
            "folded": (b"host:\r\n a",),
            "folded-to-two": (b"host: a\r\n b",),
            "nul-after-name": (b"host\x00: a",),
        }.items()
    ),
    row(
        "host/forwarded-is-not-it",
        "RFC 9112 section 3.2: another field does not stand in for it",
        head(LINE, b"x-forwarded-host: a", LENGTH) + BODY,
        answered(400),
    ),
    row("host/old-version-without", OLD, head(_OLD, LENGTH) + BODY, served(BODY), answered(400)),
    row("host/old-version-bad", ONE, head(_OLD, b"host: a/b", LENGTH) + BODY, answered(400)),
    row(
        "host/old-version-two",
        ONE,
        head(_OLD, b"host: a", b"host: a", LENGTH) + BODY,
        answered(400),
    ),
    row(
        "host/a-bad-one-hides-no-request",
        "RFC 9112 section 9.3: a body that is not wanted is read, or the connection closed",
        _host(b"a/b", HIDDEN),
        answered(400),
    ),
    row(
        "host/of-the-worker-is-written-anew",
        "RFC 9110 section 7.2: Host is of the one who is asked",
        _host(b"evil.example"),
        served(BODY),
        never=[b"evil.example"],
    ),
]
