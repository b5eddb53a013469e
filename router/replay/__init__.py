"""Replays traces and conversations against any OpenAI-compatible server, and measures it.

`plan.py` says what to replay, `run.py` sends it when it is due and shows progress, `client.py`
sends one request, `stream.py` reads one streamed answer, and `report.py` has the result.

It is a client: it shares nothing with a running router.
"""
