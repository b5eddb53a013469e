"""A certificate authority for tests."""

import ssl
from datetime import datetime
from pathlib import Path

import trustme


class Authority:
    """A CA that writes its root and the certificates it issues to files that settings can name."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._ca = trustme.CA()
        self.roots = str(folder / "roots.pem")
        self._ca.cert_pem.write_to_path(self.roots)

    def issue(
        self,
        name: str = "127.0.0.1",
        begins: datetime | None = None,
        ends: datetime | None = None,
    ) -> dict[str, str]:
        """Issue a certificate for one name, by default valid now; return both files' paths."""
        issued = self._ca.issue_cert(name, not_before=begins, not_after=ends)
        paths = {end: str(self._folder / f"{name}.{end}") for end in ("certificate", "key")}
        Path(paths["certificate"]).unlink(missing_ok=True)
        for blob in issued.cert_chain_pems:
            blob.write_to_path(paths["certificate"], append=True)
        issued.private_key_pem.write_to_path(paths["key"])
        return paths

    def server(self, name: str = "127.0.0.1", clients: str | None = None) -> ssl.SSLContext:
        """Make a worker's TLS context; with `clients` (roots), demand client certificates."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        paths = self.issue(name)
        context.load_cert_chain(paths["certificate"], paths["key"])
        if clients is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(clients)
        return context

    def client(self, shown: dict[str, str] | None = None) -> ssl.SSLContext:
        """Make a client's TLS context, which trusts this CA and presents `shown` if given."""
        context = ssl.create_default_context(cafile=self.roots)
        if shown is not None:
            context.load_cert_chain(shown["certificate"], shown["key"])
        return context
