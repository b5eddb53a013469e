"""docs/hyperpod.md: every row of the checklist, every test that it names, and every field."""

import re
from pathlib import Path

from router.hyperpod.manifest import _READ

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "hyperpod.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| ([A-Z][0-9]+) \| [^|]+ \| (.+) \|$", TEXT, re.MULTILINE))
WORDS = ("Met: ", "In part: ", "Not yet", "Not planned: ", "Not needed ")
EXPECTED = [
    f"{letter}{number}"
    for letter, count in (("R", 18), ("K", 7), ("C", 3), ("O", 4), ("L", 2), ("P", 3))
    for number in range(1, count + 1)
]
#: Fields that the router reads, except those that are only checked for others.
READ = [one for one in _READ if not one.startswith(("metrics.metrics", "metrics.model"))]
#: Environment variables of workers that become settings.
VARIABLES = {
    "SESSION_KEY",
    "SAGEMAKER_SESSIONS_EXPIRATION",
    "SES_TTL_MIN",
    "SAGEMAKER_ENABLE_STATEFUL_SESSIONS",
    "VLLM_API_KEY",
}


def test_every_row_is_there() -> None:
    """Rows are in order, and each says how far it is met."""
    assert list(ROWS) == EXPECTED
    for row, said in ROWS.items():
        assert said.startswith(WORDS), row
        assert "Not yet" in said or "](" in said or "Not planned" in said, row


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


def named_in(table: str) -> set[str]:
    """Return the fields in a table's first column; one that begins with a dot continues another."""
    found: list[str] = []
    for row in re.findall(r"^\| (`.+?) \| ", table, re.MULTILINE):
        for name in re.findall(r"`([^`]+)`", row):
            above = found[-1].rpartition(".")[0] if name.startswith(".") else ""
            found.append(above + name)
    return set(found)


def test_every_field_that_is_read_is_in_the_page() -> None:
    """By itself or as part of a larger one, as are the variables; and no field that is not read."""
    table = TEXT.partition("## What becomes of what")[2].partition("## Its metric names")[0]
    named = named_in(table)
    assert named >= VARIABLES
    for field in READ:
        parts = field.split(".")
        assert named & {".".join(parts[:end]) for end in range(1, len(parts) + 1)}, field
    for field in named - VARIABLES - {"worker.args", "worker.environmentVariables"}:
        assert any(f"{read}.".startswith(f"{field}.") for read in READ), field
