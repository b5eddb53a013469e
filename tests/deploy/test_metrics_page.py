"""docs/metrics.md lists every exported series with its type and labels, and no others."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
ROW = re.compile(r"^\| (`(?:warmroute|process)_[^|]*) \| (counter|gauge|histogram) \| \S")
SERIES = re.compile(r"`(\w+)(?:\{([\w,]+)\})?`")


class Series(NamedTuple):
    """One series of a table row."""

    name: str
    type: str
    labels: frozenset[str]


def documented() -> list[Series]:
    """Return all series in the page's tables."""
    rows = filter(None, map(ROW.match, PAGE.read_text().splitlines()))
    return [
        Series(name, row[2], frozenset(filter(None, labels.split(","))))
        for row in rows
        for name, labels in SERIES.findall(row[1])
    ]


def told(scraped: list[str]) -> Iterator[tuple[str, str, frozenset[str] | None]]:
    """Yield name, type and, if there is a sample, labels of every exported series."""
    for text in scraped:
        for family in text_string_to_metric_families(text):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            labels = {label for sample in family.samples for label in sample.labels} - {"le"}
            yield name, family.type, frozenset(labels) if family.samples else None


def test_every_series_is_in_the_page(scraped: list[str]) -> None:
    """Each exported series is listed as it is, and nothing else is listed."""
    page = {one.name: one for one in documented()}
    assert len(page) == len(documented()) > 70
    seen: set[str] = set()
    for name, type_, labels in told(scraped):
        assert name in page, name
        assert page[name].type == type_, name
        assert labels in {None, page[name].labels}, name
        seen.add(name)
    assert seen == page.keys()
