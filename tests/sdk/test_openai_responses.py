"""OpenAI's client and the responses that workers keep."""

import openai
import pytest

from tests.responses.engine import Engine
from tests.support import MakeRouter


def test_a_background_response_by_all_its_methods(route: MakeRouter) -> None:
    """Made, fetched, streamed from an event on, continued, listed, cancelled and deleted."""
    workers = [Engine() for _ in range(3)]
    try:
        for one in workers:
            one.start()
        router = route(*(one.url for one in workers), strategy="roundrobin")
        with openai.OpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0) as client:
            for _ in range(3):
                _use(client)
    finally:
        for one in workers:
            one.stop()


def _use(client: openai.OpenAI) -> None:
    made = client.responses.create(model="m", input="x", background=True)
    assert made.status == "queued"
    name = made.id
    assert client.responses.retrieve(name).id == name
    events = client.responses.retrieve(name, stream=True, starting_after=0)
    assert [event.type for event in events] == ["response.in_progress", "response.completed"]
    more = client.responses.create(model="m", input="y", previous_response_id=name)
    assert more.status == "completed"
    assert client.responses.input_items.list(name).data == []
    assert client.responses.cancel(name).status == "cancelled"
    client.responses.delete(name)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(name)
    with pytest.raises(openai.NotFoundError) as unknown:
        client.responses.retrieve("resp_unknown")
    assert unknown.value.code == "response_not_found"
