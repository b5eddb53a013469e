"""Whether a request comes from a web page of somebody else's. Pure.

A browser sends what any page tells it to, also to addresses that only its own machine can reach;
and a page whose name is made to lead there reads the answers too (DNS rebinding). But with all that
could have an effect, it says for which page it asks: `Origin` (fetch.spec.whatwg.org, "origin
header"). A GET may come without; clients that are no browsers send none.
"""

import re
from functools import lru_cache
from ipaddress import ip_address

#: An installed application has a scheme of its own (`app://`, `tauri://`); no page can take one.
_APPLICATION = re.compile(rb"(?!https?:)[a-z][a-z0-9+.-]*://[^,]*")
_WEB = re.compile(rb"https?://(?:\[([^\]]+)\]|([^:/]*))(?::[0-9]*)?")
_NAMED_HOST = re.compile(rb"(?:\[([^\]]*)\]|([^:]*))(?::[0-9]*)?")


@lru_cache(maxsize=256)
def is_foreign(origin: bytes, host: bytes) -> bool:
    """Whether `origin` is neither of this machine nor what this router was asked for by, `host`.

    Only an address says that they are the same: a name may have been made to lead here. `null` is
    whatever a page put into a frame.
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
