"""Which changes of the settings file apply at once, and which wait for a restart."""

from pathlib import Path

import pytest

from router.reload import Source, tell, without_restart
from router.settings.model import Settings
from router.settings.types import Address
from tests.reload.running import KEY, TLS, WORKERS


def read(folder: Path, text: str, listen: Address | None = None) -> Settings:
    """Write a settings file with these lines, and read it."""
    (folder / "w.yaml").write_text(WORKERS + text)
    return Source(folder / "w.yaml", listen).read()


@pytest.mark.parametrize(
    ("before", "after", "waits"),
    [
        ("listen: 127.0.0.1:1\n", "listen: 127.0.0.1:2\n", "listen"),
        ("", TLS, "tls"),
        (TLS, "", "tls"),
        (TLS, TLS.replace("}", ", client_ca: both.pem}"), "tls.client_ca"),
        ("", "admin: {listen: '127.0.0.1:9'}\n", "admin.listen"),
    ],
)
def test_what_waits_for_a_restart(folder: Path, before: str, after: str, waits: str) -> None:
    """Addresses, TLS itself and client certificates wait for a restart; other changes do not."""
    old = read(folder, before)
    new = read(folder, after + "limits: {n: 7}\n")
    possible = without_restart(old, new)
    assert possible.limits.n == 7
    assert possible.model_copy(update={"limits": old.limits}) == old
    said = tell(old, possible, new)
    assert "limits.n: 128 → 7" in said
    rest = [one for one in said if one != "limits.n: 128 → 7"]
    assert rest
    assert all(one.startswith(waits) for one in rest)
    assert all(one.endswith("; waits for a restart") for one in rest)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("listen: 0.0.0.0:1\n" + KEY, "listen: 127.0.0.1:1\n"),
        ("listen: 0.0.0.0:1\n" + KEY + TLS, "listen: 0.0.0.0:1\nauth: none\n" + TLS[:-2]
         + ", client_ca: both.pem}\n"),
        ("listen: 0.0.0.0:1\n" + KEY, "listen: 0.0.0.0:1\nauth: none\n"
         "admin: {listen: '127.0.0.1:9'}\n"),
    ],
    ids=["loopback", "certificates", "operators"],
)  # fmt: skip
def test_no_door_opens_before_the_restart(folder: Path, before: str, after: str) -> None:
    """Looser keys that were written for a new address or for TLS wait for the restart with it."""
    old, new = read(folder, before), read(folder, after)
    possible = without_restart(old, new)
    assert possible.client_keys == old.client_keys
    assert possible.admin_keys == old.admin_keys
    assert possible.listen == old.listen
    said = tell(old, possible, new)
    assert any(one.startswith("auth: keys → ") for one in said)
    assert all(one.endswith("; waits for a restart") for one in said)


def test_keys_alone_do_not_wait(folder: Path) -> None:
    """Changed keys apply at once if nothing else needs a restart."""
    old, new = read(folder, KEY), read(folder, "")
    assert without_restart(old, new) == new
    assert tell(old, new, new) == ["auth: keys → everyone on this machine", "auth: key k removed"]


def test_certificates_do_not_wait(folder: Path) -> None:
    """Changed certificate files apply without a restart."""
    old, new = read(folder, TLS), read(folder, TLS.replace("one", "two"))
    assert without_restart(old, new) == new


def test_nothing_to_tell(folder: Path) -> None:
    """If nothing has changed, that is logged too."""
    old = read(folder, "")
    assert tell(old, old, read(folder, "# nothing\n")) == ["no changes"]
