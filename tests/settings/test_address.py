"""Addresses in settings: what is read, refused and printed."""

import pytest
from pydantic import TypeAdapter

from router.settings.types import Address

ADDRESS = 'is not an address: write host:port, such as 127.0.0.1:8080 or "[::1]:8080"'


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:8080", "127.0.0.1", 8080),
        ("[::1]:8080", "::1", 8080),
        ("router.example:0", "router.example", 0),
        ("gpu_2:65535", "gpu_2", 65535),
    ],
)
def test_an_address_is_read_and_prints_back(text: str, host: str, port: int) -> None:
    """IPv6 addresses have brackets in the text, and none in `host`."""
    address = TypeAdapter(Address).validate_python(text)
    assert (address.host, address.port) == (host, port)
    assert str(address) == text
    assert Address.parse(address) is address


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (8080, "8080"),
        (":8080", '":8080"'),
        ("127.0.0.1", '"127.0.0.1"'),
        ("127.0.0.1:", '"127.0.0.1:"'),
        ("127.0.0.1:80a", '"127.0.0.1:80a"'),
        ("127.0.0.1:-1", '"127.0.0.1:-1"'),
        ("::1:8080", '"::1:8080"'),
        ("[::g]:8080", '"[::g]:8080"'),
        ("[fe80::1%eth0]:80", '"[fe80::1%eth0]:80"'),
        ("999.0.0.1:80", '"999.0.0.1:80"'),
        ("a b:80", '"a b:80"'),
        ("http://a:80", '"http://a:80"'),
        ("a:80\n", '"a:80\\n"'),
        (None, "nothing"),
    ],
)
def test_anything_else_is_no_address(value: object, said: str) -> None:
    """The message shows both forms."""
    with pytest.raises(ValueError, match="address") as caught:
        Address.parse(value)
    assert str(caught.value) == f"{said} {ADDRESS}"


def test_a_port_has_a_largest_number() -> None:
    """A port fits 16 bits."""
    with pytest.raises(ValueError, match=r'^"a:65536" is not an address: a port is at most 65535$'):
        Address.parse("a:65536")


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.8.9.10", "::1", "0:0:0:0:0:0:0:1", "::ffff:127.0.0.1", "LocalHost"]
)
def test_a_loopback_address_is_known(host: str) -> None:
    """Loopback addresses are recognised in every notation."""
    assert Address(host, 80).is_loopback


@pytest.mark.parametrize(
    "host",
    ["0.0.0.0", "::", "10.0.0.1", "::ffff:10.0.0.1", "fe80::1", "localhost.example", "gpu-2"],  # noqa: S104
)
def test_any_other_address_may_be_reached_by_others(host: str) -> None:
    """Names other than localhost count as reachable too, since they may resolve to anything."""
    assert not Address(host, 80).is_loopback
