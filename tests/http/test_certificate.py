"""From when until when a certificate is valid."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from router.http.tls import Validity, complaint, validity
from tests.authority import Authority
from tests.pems import write_pems

BEGINS = datetime(2020, 2, 29, 1, 2, 3, tzinfo=UTC)


@pytest.mark.parametrize("year", [2021, 2049, 2050, 2068, 2150, 9999])
def test_both_ends(tmp_path: Path, year: int) -> None:
    """Exact to the second; years before 2050 are encoded with two digits, later ones with four."""
    ends = datetime(year, 12, 31, 23, 59, 59, tzinfo=UTC)
    path = Path(Authority(tmp_path / "ours").issue(begins=BEGINS, ends=ends)["certificate"])
    assert validity(path) == (BEGINS.timestamp(), ends.timestamp())


def test_the_first_certificate_counts(tmp_path: Path) -> None:
    """The file's first certificate is read, whatever precedes it: a private key or plain text."""
    write_pems(tmp_path)
    alone = validity(tmp_path / "one.pem")
    assert alone is not None
    texts = [(tmp_path / name).read_text() for name in ("one.key", "one.pem", "two.pem")]
    (tmp_path / "all.pem").write_text("Subject: CN = one\n" + "".join(texts))
    assert validity(tmp_path / "all.pem") == alone


@pytest.mark.parametrize("cut", [0, 5, 40, 130])
def test_what_is_no_certificate(tmp_path: Path, cut: int) -> None:
    """A file that holds no readable certificate yields None and raises nothing."""
    write_pems(tmp_path)
    lines = (tmp_path / "one.pem").read_text().splitlines()
    text = "".join(lines[1:-1])[:cut]
    (tmp_path / "cut.pem").write_text("\n".join([lines[0], text, lines[-1]]))
    assert validity(tmp_path / "cut.pem") is None
    assert validity(tmp_path / "one.key") is None
    assert validity(tmp_path / "none.pem") is None
    assert complaint(tmp_path / "none.pem", 0.0) == ""


def test_in_words() -> None:
    """From its first second to its last there is no complaint."""
    found = Validity(86400.0, 172800.0)
    assert [found.complaint(now) for now in (86400.0, 172800.0)] == ["", ""]
    assert found.complaint(86399.0) == "is not valid before 1970-01-02 00:00:00 UTC"
    assert found.complaint(172801.0) == "expired on 1970-01-03 00:00:00 UTC"
