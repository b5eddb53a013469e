"""Replays traces and conversations against any OpenAI-compatible server, and measures it.

It is a client: it shares nothing with a running router.
"""
