"""docs/hyperpod.md: every row of the checklist is there, and every link and test that it names."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "hyperpod.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| ([A-Z][0-9]+) \| [^|]+ \| (.+) \|$", TEXT, re.MULTILINE))
WORDS = ("Met: ", "In part: ", "Not yet", "Not planned: ", "Not needed ")
EXPECTED = [
    f"{letter}{number}"
    for letter, count in (("R", 18), ("K", 7), ("C", 3), ("O", 4), ("L", 2), ("P", 3))
    for number in range(1, count + 1)
]


def test_every_row_is_there() -> None:
    """Rows are in order, and each says how far it is met."""
    assert list(ROWS) == EXPECTED
    for row, said in ROWS.items():
        assert said.startswith(WORDS), row
        assert "Not yet" in said or "](" in said or "Not planned" in said, row


def test_every_link_leads_somewhere() -> None:
    """Links within the repository have a target."""
    for link in re.findall(r"\]\(([^)#]+)\)", TEXT):
        assert (ROOT / "docs" / link).exists(), link


def test_every_test_that_is_named_is_there() -> None:
    """Each one is in a file that the same row links to."""
    named = 0
    for row, said in ROWS.items():
        files = [(ROOT / "docs" / link).resolve() for link in re.findall(r"\]\(([^)#]+)\)", said)]
        code = "".join(file.read_text(encoding="utf-8") for file in files if file.suffix == ".py")
        for name in re.findall(r"`(test_\w+)`", said):
            assert f"def {name}(" in code, (row, name)
            named += 1
    assert named > 20


def test_every_field_that_is_mapped_is_in_the_page() -> None:
    """The main fields that become settings are in the table."""
    table = TEXT.partition("## What becomes of what")[2].partition("## Its metric names")[0]
    for field in (
        "routingStrategy",
        "routingAlgorithm",
        "maxConcurrentRequests",
        "maxQueueSize",
        "overflowStatusCode",
        "SESSION_KEY",
        "endpointName",
        "kvCacheSpec",
        "idleTimeoutSeconds",
    ):
        assert field in table
