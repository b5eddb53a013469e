"""Detects requests that a browser sends for somebody else's web page. Pure.

A browser sends whatever a page tells it to, even to addresses that only its own machine can reach.
If the page's name is made to resolve to such an address, the page can read the answers too (DNS
rebinding). But on every request that could have an effect, the browser names the page in `Origin`
(fetch.spec.whatwg.org, "origin header"). A GET may lack it; clients other than browsers send none.
"""

import re
from functools import lru_cache
from ipaddress import ip_address

#: Installed applications have their own schemes (`app://`, `tauri://`), which no web page can use.
_APPLICATION = re.compile(rb"(?!https?:)[a-z][a-z0-9+.-]*://[^,]*")
_WEB = re.compile(rb"https?://(?:\[([^\]]+)\]|([^:/]*))(?::[0-9]*)?")
_NAMED_HOST = re.compile(rb"(?:\[([^\]]*)\]|([^:]*))(?::[0-9]*)?")


@lru_cache(maxsize=256)
def is_foreign(origin: bytes, host: bytes) -> bool:
    """Whether `origin` is neither this machine nor the address in `host`, the request's Host.

    They match only if both are the same IP address, because any name can be made to resolve to this
    router. `null`, the origin of a sandboxed frame, is foreign.
    """
    page = _WEB.fullmatch(origin.lower())
    if page is None:
        return _APPLICATION.fullmatch(origin.lower()) is None
    name = page[1] or page[2]
    if name == b"localhost" or name.endswith(b".localhost"):  # RFC 6761 section 6.3
        return False
    try:
        address = ip_address(name.decode())
    except ValueError:
        return True
    asked = _NAMED_HOST.fullmatch(host.lower())
    return not (address.is_loopback or (asked is not None and name == (asked[1] or asked[2])))
