"""Metrics as text, written bit by bit."""

import asyncio

from prometheus_client.core import CounterMetricFamily
from prometheus_client.exposition import generate_latest

from router.admin.views import View
from router.fleet.metrics import fleet_metrics
from router.observe.exposition import SLICE
from tests.router.fleets import fleet


def test_very_many_series_let_others_have_their_turns() -> None:
    """The text is that of Prometheus' own client, and no other request waits for all of it."""
    ours = fleet(workers=3 * SLICE)
    metrics = fleet_metrics(ours)
    odd = CounterMetricFamily("odd", 'a "help"\nwith two lines \\', labels=("name",))
    for number in range(SLICE + 1):
        odd.add_metric((f'"{number}"\n\\',), number)
    empty = CounterMetricFamily("empty", "None.", labels=("name",))
    metrics.add(lambda: [odd, empty])
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def scraped() -> bytes:
        other = asyncio.create_task(others())
        text = await View(ours, metrics).metrics()
        other.cancel()
        return text

    text = asyncio.run(scraped())
    lines = text.count(b"\n")
    assert turns > lines / SLICE
    plain = generate_latest(metrics.registry)
    assert [one for one in text.split(b"\n") if b"_tasks " not in one] == [
        one for one in plain.split(b"\n") if b"_tasks " not in one
    ]
