"""One request over HTTP: parsed, sent to its worker, failed over, relayed to the client.

Where it goes is decided in `dispatch/`.
"""
