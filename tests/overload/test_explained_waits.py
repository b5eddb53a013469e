"""An explanation says what its request would wait for."""

from concurrent.futures import ThreadPoolExecutor

from tests.overload.busy import QUIET, Gate, ask, asked, busied, waits
from tests.support import MakeRouter, MakeStub, until


def test_an_explanation_says_what_would_be_waited_for(
    stub: MakeStub, route: MakeRouter, crowd: ThreadPoolExecutor
) -> None:
    """`/explain` says whether the request would be held, would wait for a place, or neither."""
    gate = Gate()
    worker = stub(gate.script())
    router = route(worker.url, health=QUIET, limits={"in_flight": 2})

    def explained() -> tuple[str, bool]:
        found = router.http.post("/explain", json=asked("explained", 2000)).json()
        return found["waits"], "Before that it would" in found["words"]

    assert explained() == ("", False)
    answers = [busied(router, crowd, worker)]
    assert explained() == ("held", True)
    answers.append(ask(router, crowd, "other", 2000))
    until(waits(router, 1))
    assert explained() == ("place", True)
    gate.opened.set()
    assert [answer.result().status_code for answer in answers] == [200] * 2
